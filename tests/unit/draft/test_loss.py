"""The chunked loss with a hand-written gradient against its definition; offset weights against theirs."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from dartspec.services.draft.train import loss as loss_module
from dartspec.services.draft.train.loss import FrozenOutputKL, restrict_teacher
from dartspec.services.draft.train.train import TrainSettings, learning_rate, offset_weights


def test_value_and_gradient_equal_the_dense_definition(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loss_module, "_CHUNK", 3)
    torch.manual_seed(0)
    normed = torch.randn(8, 6, requires_grad=True)
    matrix, weights = torch.randn(11, 6), torch.rand(8)
    ids = torch.stack([torch.randperm(11)[:4] for _ in range(8)])
    probs = torch.rand(8, 4)
    probs = probs / probs.sum(-1, keepdim=True)
    probs[2] = 0.0  # a row whose teacher lies outside the vocabulary teaches nothing

    teacher = torch.zeros(8, 11).scatter(-1, ids, probs)
    divergence = F.kl_div(F.log_softmax(normed @ matrix.T, -1), teacher, reduction="none").sum(-1)
    expected = (weights * divergence).sum()
    (expected_gradient,) = torch.autograd.grad(expected, normed)

    actual = FrozenOutputKL.apply(normed, matrix, ids, probs, weights)
    (gradient,) = torch.autograd.grad(actual * 2.0, normed)
    torch.testing.assert_close(actual, expected)
    torch.testing.assert_close(gradient, 2.0 * expected_gradient)
    assert gradient[2].abs().max() == 0


def test_the_teacher_is_renormalised_over_the_draft_vocabulary() -> None:
    draft_ids = torch.tensor([-1, 0, 1, -1, 2])
    ids, probs = restrict_teacher(
        torch.tensor([[4, 0, 1], [0, 3, 3]]), torch.tensor([[0.3, 0.5, 0.1], [0.9, 0.1, 0.0]]), draft_ids
    )
    assert ids.tolist() == [[2, 0, 0], [0, 0, 0]]
    torch.testing.assert_close(probs, torch.tensor([[0.75, 0.0, 0.25], [0.0, 0.0, 0.0]]))


def test_offsets_past_the_end_weigh_nothing_and_sampling_keeps_the_expectation() -> None:
    settings = TrainSettings(gamma=0.5, shallow_depth=2, deep_share=0.5)
    generator = torch.Generator().manual_seed(1)
    prefixes = torch.tensor([5, 8])
    draws = torch.stack([offset_weights(prefixes, 10, 4, settings, generator) for _ in range(4000)])
    # prefix 5 has tokens x[6] .. x[9]; prefix 8 has x[9] only
    expected = torch.tensor([[1.0, 0.5, 0.25, 0.125], [1.0, 0.0, 0.0, 0.0]])
    torch.testing.assert_close(draws.mean(0), expected, rtol=0.1, atol=0)
    assert set(draws[:, 0, 2].tolist()) == {0.0, 0.5}


def test_the_learning_rate_warms_up_and_decays() -> None:
    settings = TrainSettings(steps=110, warmup=10, rate=1.0)
    rates = [learning_rate(step, settings) for step in range(111)]
    assert rates[0] == pytest.approx(0.1)
    assert rates[9] == rates[10] == pytest.approx(1.0)
    assert rates[60] == pytest.approx(0.02 + 0.98 / 2)
    assert rates[110] == pytest.approx(0.02)
