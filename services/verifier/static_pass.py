"""A target pass over static inputs: the same mathematics as `Target.forward`, with nothing that asks the host.

Every number that changes from pass to pass lies in `Inputs`, so a CUDA graph of it can be replayed.
"""

from __future__ import annotations

from typing import Protocol

import torch
import torch.nn.functional as F

from dartspec.services.verifier.linear import Matrix, linear
from dartspec.services.verifier.static_inputs import Inputs
from dartspec.services.verifier.target import Layer, Pass, Target


class Kernels(Protocol):
    """What lies between the matrix products. `kernels.py` for CUDA; the tests have a plain twin."""

    def add_norm(
        self, x: torch.Tensor, delta: torch.Tensor | None, weight: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """x and delta [rows, H] -> their sum, and that normed and weighted."""

    def gate(self, gate_up: torch.Tensor) -> torch.Tensor:
        """gate_up [rows, 2 I] -> silu of the first half times the second, [rows, I]."""

    def rotate_store(self, inputs: Inputs, index: int, layer: Layer, qkv: torch.Tensor) -> torch.Tensor:
        """qkv [rows, (heads + 2 kv_heads) head_dim] -> rotated queries; keys and values go to their slots."""

    def attend(self, inputs: Inputs, index: int, queries: torch.Tensor) -> torch.Tensor:
        """queries [rows, heads, head_dim] -> [rows, heads head_dim]."""


@torch.inference_mode()
def static_pass(target: Target, inputs: Inputs, kernels: Kernels) -> Pass:
    """Hidden states and features of all rows, padding included."""
    rows = target.rows

    def product(x: torch.Tensor, weight: Matrix, bias: torch.Tensor | None) -> torch.Tensor:
        return linear(x, weight, bias, rows)

    x = F.embedding(inputs.tokens, target.embedding)  # [rows, H]
    delta: torch.Tensor | None = None
    outputs: dict[int, torch.Tensor] = {}
    for index, layer in enumerate(target.layers):
        x, normed = kernels.add_norm(x, delta, layer.input_norm)
        if index - 1 in target.feature_layers:
            outputs[index - 1] = x  # the layer before is complete now
        queries = kernels.rotate_store(inputs, index, layer, product(normed, layer.qkv, layer.qkv_bias))
        mixed = product(kernels.attend(inputs, index, queries), layer.out, layer.out_bias)
        x, normed = kernels.add_norm(x, mixed, layer.mlp_norm)
        gated = kernels.gate(product(normed, layer.gate_up, layer.gate_up_bias))
        delta = product(gated, layer.down, layer.down_bias)
    assert delta is not None
    x = outputs[len(target.layers) - 1] = x + delta
    features = [outputs[index] for index in target.feature_layers]
    return Pass(x, torch.cat(features, dim=-1) if features else x[:, :0])
