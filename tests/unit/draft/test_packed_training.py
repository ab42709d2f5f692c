"""The packed training pass sees what inference sees: nothing later, nothing of other groups, the same positions."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from dartspec.services.draft.head import DraftHead
from dartspec.services.draft.propose import DraftInput, Proposer
from dartspec.services.draft.train import packed as packed_module
from dartspec.services.draft.train.packed import PackedText, packed_hidden
from dartspec.services.draft.train.teacher import TextTensors

MakeHead = Callable[..., DraftHead]
DEPTH = 5


def make_text(seed: int, length: int) -> TextTensors:
    generator = torch.Generator().manual_seed(seed)
    return TextTensors(
        tokens=torch.randint(97, (length,), generator=generator),
        prompt_length=3,
        temperature=0.0,
        features=torch.randn(length, 96, generator=generator),
        teacher_ids=torch.zeros(length, 1, dtype=torch.int64),
        teacher_probs=torch.zeros(length, 1),
    )


def packed_logits(head: DraftHead, packed: list[PackedText]) -> Tensor:
    """[groups, d, V_draft]."""
    groups = sum(len(entry.prefixes) for entry in packed)
    hidden = packed_hidden(head, packed, torch.ones(groups, DEPTH, dtype=torch.bool))
    return head.logits(hidden).unflatten(0, (groups, DEPTH))


def inference_logits(head: DraftHead, text: TextTensors, prefix: int) -> Tensor:
    proposer = Proposer(head)
    entry = DraftInput(proposer.new_cache(), text.features[:prefix], text.tokens[1 : prefix + 1])
    return proposer.logits([entry])[0]


def largest_leak(head: DraftHead) -> float:
    """How much predictions of prefixes change when everything later than their pending token changes."""
    text = make_text(1, 24)
    prefixes = torch.tensor([1, 4, 5, 11, 20])
    before = packed_logits(head, [PackedText(text, prefixes)])
    worst = 0.0
    for row, prefix in enumerate(prefixes.tolist()):
        other = make_text(2, 24)
        tokens, features = other.tokens.clone(), other.features.clone()
        tokens[: prefix + 1], features[:prefix] = text.tokens[: prefix + 1], text.features[:prefix]
        changed = TextTensors(tokens, 3, 0.0, features, text.teacher_ids, text.teacher_probs)
        after = packed_logits(head, [PackedText(changed, prefixes)])
        worst = max(worst, float((after[row] - before[row]).abs().max()))
    return worst


def test_packed_training_gives_the_logits_of_inference(make_head: MakeHead) -> None:
    head = make_head()
    texts = [make_text(seed, length) for seed, length in ((1, 24), (2, 9), (3, 40))]
    prefixes = [torch.tensor([3, 8, 9, 22]), torch.tensor([1]), torch.arange(1, 39)]
    packed = [PackedText(text, chosen) for text, chosen in zip(texts, prefixes, strict=True)]
    expected = [
        inference_logits(head, text, n) for text, chosen in zip(texts, prefixes, strict=True) for n in chosen.tolist()
    ]
    torch.testing.assert_close(packed_logits(head, packed), torch.stack(expected), rtol=1e-4, atol=1e-4)


def test_only_wanted_rows_are_computed_and_in_order(make_head: MakeHead) -> None:
    head, text = make_head(), make_text(4, 20)
    packed = [PackedText(text, torch.tensor([4, 9, 17]))]
    wanted = torch.tensor([[1, 1, 0, 0, 0], [1, 0, 1, 0, 1], [0, 0, 0, 1, 0]]).bool()
    everything = packed_hidden(head, packed, torch.ones_like(wanted)).unflatten(0, (3, DEPTH))
    torch.testing.assert_close(packed_hidden(head, packed, wanted), everything[wanted])


def test_a_prefix_does_not_see_what_comes_later(make_head: MakeHead) -> None:
    assert largest_leak(make_head()) < 1e-5


def test_the_leak_test_notices_a_broken_mask(make_head: MakeHead, monkeypatch: pytest.MonkeyPatch) -> None:
    intact = packed_module._attend_groups

    def one_too_many(q: Tensor, mk: Tensor, mv: Tensor, k: Tensor, v: Tensor, prefixes: Tensor) -> Tensor:
        return intact(q, mk, mv, k, v, prefixes + 1)

    monkeypatch.setattr(packed_module, "_attend_groups", one_too_many)
    assert largest_leak(make_head()) > 1e-3


def test_groups_do_not_see_each_other(make_head: MakeHead) -> None:
    head, text = make_head(), make_text(5, 30)
    alone = packed_logits(head, [PackedText(text, torch.tensor([10]))])[0]
    among = packed_logits(
        head, [PackedText(make_text(6, 12), torch.tensor([2])), PackedText(text, torch.arange(8, 14))]
    )
    torch.testing.assert_close(among[3], alone, rtol=1e-4, atol=1e-4)


def test_packed_gradients_equal_those_of_one_prefix_at_a_time(make_head: MakeHead) -> None:
    head, text = make_head().double().requires_grad_(True), make_text(7, 16)
    text = TextTensors(text.tokens, 3, 0.0, text.features.double(), text.teacher_ids, text.teacher_probs)
    prefixes = torch.tensor([3, 6, 7, 13])
    weight = torch.randn(4, DEPTH, 97, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    def gradients(parts: list[tuple[Tensor, Tensor]]) -> list[Tensor]:
        head.zero_grad()
        for chosen, scale in parts:
            (packed_logits(head, [PackedText(text, chosen)]) * scale).sum().backward()
        return [parameter.grad.clone() for parameter in head.parameters() if parameter.grad is not None]

    together = gradients([(prefixes, weight)])
    apart = gradients([(prefixes[row : row + 1], weight[row : row + 1]) for row in range(4)])
    assert len(together) == len(list(head.parameters()))
    for left, right in zip(together, apart, strict=True):
        # attention weights are rounded to float32 on the way
        torch.testing.assert_close(left, right, rtol=1e-4, atol=1e-4)
