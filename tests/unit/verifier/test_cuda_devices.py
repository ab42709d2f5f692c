"""Passes for CUDA mix no tensors of host and device: seen with fake tensors, which have a device and no contents."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from bench.gpu_model import SMALL, Contexts, make_head, make_target
from dartspec.services.draft import target_info
from dartspec.services.draft.propose import DraftInput, Proposer
from dartspec.services.verifier.attention import Segment
from dartspec.services.verifier.static_inputs import Inputs, Shape
from dartspec.services.verifier.static_pass import static_pass
from dartspec.services.verifier.target import Layer, Target

CUDA = torch.device("cuda", 0)


def unpinned(make: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Pinning memory needs a driver."""
    return lambda *sizes, pin_memory=False, **options: make(*sizes, **options)


class ShapesOnly:
    """In place of the kernels: results of the right size, from everything that a kernel reads."""

    def __init__(self, target: Target) -> None:
        self._target = target

    def add_norm(self, x: torch.Tensor, delta: torch.Tensor | None, weight: torch.Tensor) -> Any:
        return x if delta is None else x + delta, x * weight

    def gate(self, gate_up: torch.Tensor) -> torch.Tensor:
        gate, up = gate_up.chunk(2, dim=-1)
        return gate * up

    def rotate_store(self, inputs: Inputs, index: int, layer: Layer, qkv: torch.Tensor) -> torch.Tensor:
        c = self._target.config
        queries = qkv.view(len(qkv), -1, c.head_dim)[:, : c.heads]
        assert layer.q_norm is not None
        return queries * self._target.rope[0][inputs.positions][:, None] * layer.q_norm

    def attend(self, inputs: Inputs, index: int, queries: torch.Tensor) -> torch.Tensor:
        return (queries * inputs.visible[:, :1, None] * inputs.rows[:, :1, None]).flatten(1)


@pytest.fixture
def target(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(target_info, "target_fingerprint", lambda *_: "none")
    with FakeTensorMode(allow_non_fake_inputs=True):
        loaded = make_target(SMALL, CUDA)
        for name in ("empty", "zeros"):
            monkeypatch.setattr(torch, name, unpinned(getattr(torch, name)))
        yield loaded


def test_the_model_is_made_on_the_device(target: Any) -> None:
    tensors = [target.target.embedding, target.target.norm, *target.target.rope, target.target.layers[0].q_norm]
    assert {tensor.device for tensor in tensors} == {CUDA}


@pytest.mark.parametrize("nodes", [0, 8])
def test_a_plain_pass(target: Any, nodes: int) -> None:
    contexts = Contexts(target.target, 40)
    contexts.open(4, 60)
    out = target.target.eager(contexts.segments(4, nodes))
    assert out.hidden.shape == (4 * (nodes + 1), 64)
    assert target.target.logits(out.hidden).device == CUDA


def test_a_static_pass(target: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def filled(self: Inputs, segments: tuple[Segment, ...]) -> None:
        """The host's part needs contents."""

    monkeypatch.setattr(Inputs, "fill", filled)
    inputs = Inputs(Shape(8, 4, 16), target.target.norm)
    out = static_pass(target.target, inputs, ShapesOnly(target.target))
    assert (out.hidden.device, out.features.shape) == (CUDA, (8, 3 * 64))


def test_a_draft(target: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    head = make_head(target, 128, 7)
    proposer = Proposer(head)
    features = torch.randn(3, 3 * 64, device=CUDA)
    entries = [DraftInput(proposer.new_cache(), features, torch.arange(3)) for _ in range(2)]
    assert proposer.logits(entries).shape == (2, 8, 128)
    assert proposer.logits(entries).device == CUDA
