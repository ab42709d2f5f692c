"""The chunked loss with a hand-written gradient against its definition; offset weights against theirs."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from dartspec.services.draft.train import loss as loss_module
from dartspec.services.draft.train.loss import OutputKL, restrict_teacher
from dartspec.services.draft.train.sampling import Sampler, offset_weights
from dartspec.services.draft.train.settings import TrainSettings
from dartspec.services.draft.train.train import learning_rate


@pytest.mark.parametrize("trained", [False, True])
def test_value_and_gradient_equal_the_dense_definition(monkeypatch: pytest.MonkeyPatch, trained: bool) -> None:
    monkeypatch.setattr(loss_module, "_CHUNK", 3)
    torch.manual_seed(0)
    normed = torch.randn(8, 6, requires_grad=True)
    matrix, weights = torch.randn(11, 6), torch.rand(8)
    left, right = torch.randn(8, 2), torch.randn(2, 11)
    if trained:
        matrix, left, right = (value.requires_grad_() for value in (matrix, left, right))
    ids = torch.stack([torch.randperm(11)[:4] for _ in range(8)])
    probs = torch.rand(8, 4)
    probs = probs / probs.sum(-1, keepdim=True)
    probs[2] = 0.0  # a row whose teacher lies outside the vocabulary teaches nothing

    teacher = torch.zeros(8, 11).scatter(-1, ids, probs)
    scores = normed @ matrix.T + (left @ right if trained else 0.0)
    divergence = F.kl_div(F.log_softmax(scores, -1), teacher, reduction="none").sum(-1)
    expected = (weights * divergence).sum()
    wanted = (normed, matrix, left, right) if trained else (normed,)
    expected_gradients = torch.autograd.grad(expected, wanted)

    actual = OutputKL.apply(normed, matrix, ids, probs, weights, *((left, right) if trained else ()))
    gradients = torch.autograd.grad(actual * 2.0, wanted)
    torch.testing.assert_close(actual, expected)
    for gradient, wanted_gradient in zip(gradients, expected_gradients, strict=True):
        torch.testing.assert_close(gradient, 2.0 * wanted_gradient)
    assert gradients[0][2].abs().max() == 0


def test_passes_hold_the_wanted_prefixes_of_every_text_in_turn() -> None:
    sizes = [(12, 3), (9, 4), (30, 5), (6, 2)]
    settings = TrainSettings(prefixes=10, per_text=6)
    sampler, again = Sampler(sizes, settings, 3), Sampler(sizes, settings, 3)
    seen = []
    for number in range(9):
        chosen = sampler.next_pass()
        assert sum(len(entry.prefixes) for entry in chosen) == 10
        for entry in chosen:
            length, prompt_length = sizes[entry.text]
            prefixes = entry.prefixes.tolist()
            assert prefixes == sorted(set(prefixes))
            assert prompt_length <= prefixes[0] <= prefixes[-1] <= length - 2
            assert len(prefixes) <= 6
        seen += [entry.text for entry in chosen]
        if number == 3:
            again.load(sampler.state())
    for begin in range(0, len(seen) - 3, 4):
        assert sorted(seen[begin : begin + 4]) == [0, 1, 2, 3]
    rest = [entry.text for _ in range(5) for entry in again.next_pass()]
    assert rest == seen[-len(rest) :]


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
