"""The packed training pass sees what inference sees: nothing later, nothing of other groups or texts, same positions.

Every check is run on passes that are broken on purpose, too, and has to notice.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention.flex_attention import BlockMask

from dartspec.services.draft.head import DraftHead
from dartspec.services.draft.propose import DraftInput, Proposer
from dartspec.services.draft.train import attention
from dartspec.services.draft.train import layout as rules
from dartspec.services.draft.train.attention import BACKENDS
from dartspec.services.draft.train.layout import Layout
from dartspec.services.draft.train.packed import PackedText, packed_hidden
from dartspec.services.draft.train.teacher import TextTensors

MakeHead = Callable[..., DraftHead]
DEPTH = 5
PREFIXES = ([1, 4, 5, 11, 20], [2, 7], [3, 8, 9])
LENGTHS = (24, 9, 40)

REAL_KERNEL = attention._kernel


def dense(query: Tensor, key: Tensor, value: Tensor, block_mask: BlockMask, enable_gqa: bool) -> Tensor:
    """FlexAttention by definition: its mask function at every pair of rows."""
    rows, keys = torch.arange(query.shape[2])[:, None], torch.arange(key.shape[2])
    zero = torch.zeros((), dtype=torch.int64)
    mask = block_mask.mask_mod(zero, zero, rows, keys)
    return functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, enable_gqa=enable_gqa)


@pytest.fixture(autouse=True)
def dense_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """FlexAttention is traced anew for every shape on a processor; one test runs the real one."""
    monkeypatch.setattr(attention, "_kernel", lambda compiled: dense)


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


def spliced(text: TextTensors, prefix: int, other: TextTensors) -> TextTensors:
    """`text` up to what prefix `prefix` may know, x[prefix] and the features before it, then `other`."""
    tokens = torch.cat((text.tokens[: prefix + 1], other.tokens[prefix + 1 :]))
    features = torch.cat((text.features[:prefix], other.features[prefix:]))
    return TextTensors(tokens, 3, 0.0, features, text.teacher_ids, text.teacher_probs)


def some_texts() -> list[PackedText]:
    texts = [make_text(seed, length) for seed, length in enumerate(LENGTHS)]
    return [PackedText(text, torch.tensor(chosen)) for text, chosen in zip(texts, PREFIXES, strict=True)]


def packed_logits(head: DraftHead, packed: list[PackedText], backend: str = "segments") -> Tensor:
    """[groups, d, V_draft]."""
    groups = sum(len(entry.prefixes) for entry in packed)
    hidden = packed_hidden(head, packed, torch.ones(groups, DEPTH, dtype=torch.bool), backend)
    return head.logits(hidden).unflatten(0, (groups, DEPTH))


def inference_logits(head: DraftHead, text: TextTensors, prefix: int) -> Tensor:
    proposer = Proposer(head)
    entry = DraftInput(proposer.new_cache(), text.features[:prefix], text.tokens[1 : prefix + 1])
    return proposer.logits([entry])[0]


def leak(head: DraftHead, backend: str) -> float:
    """How much predictions of prefixes change with what comes after their pending token, or with other texts."""
    packed = some_texts()
    before = packed_logits(head, packed, backend)
    worst, row = 0.0, 0
    for number, entry in enumerate(packed):
        for place, prefix in enumerate(entry.prefixes.tolist()):
            row += 1
            if place % 2 == 0:  # every other one, as each costs a pass
                continue
            changed = [PackedText(make_text(50 + i, LENGTHS[i]), packed[i].prefixes) for i in range(len(packed))]
            changed[number] = PackedText(spliced(entry.text, prefix, changed[number].text), entry.prefixes)
            worst = max(worst, float((packed_logits(head, changed, backend)[row - 1] - before[row - 1]).abs().max()))
    return worst


def apart(head: DraftHead, backend: str) -> float:
    """Largest difference between the packed pass and inference, one prefix at a time."""
    packed = some_texts()
    expected = [inference_logits(head, entry.text, n) for entry in packed for n in entry.prefixes.tolist()]
    return float((packed_logits(head, packed, backend) - torch.stack(expected)).abs().max())


def misplaced(head: DraftHead | None = None, backend: str = "") -> float:
    """Positions that differ from the position contract, whatever may see whom."""
    packed = some_texts()
    layout = rules.make_layout([e.prefixes for e in packed], torch.ones(10, DEPTH, dtype=torch.bool))
    prefixes = [n for chosen in PREFIXES for n in chosen]
    pairs = [
        (rules.clean_positions(layout), [j for chosen in PREFIXES for j in range(max(chosen))]),
        (rules.row_positions(layout), [n - 1 + offset for n in prefixes for offset in range(DEPTH)]),
        (rules.mask_positions(layout).flatten(), [n + mask for n in prefixes for mask in range(DEPTH - 1)]),
    ]
    return float(sum(int((found != torch.tensor(expected)).sum()) for found, expected in pairs))


CHECKS = {"leak": leak, "apart": apart}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("window", [0, 4])
def test_a_packed_pass_is_inference_and_knows_nothing_else(
    make_head: MakeHead, window: int, check: str, backend: str
) -> None:
    assert CHECKS[check](make_head(attention_window=window), backend) < 1e-4


def test_positions_follow_the_contract() -> None:
    assert misplaced() == 0


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_flex_attention_gives_what_its_definition_gives(make_head: MakeHead, monkeypatch: pytest.MonkeyPatch) -> None:
    head = make_head()
    expected = packed_logits(head, some_texts(), "flex")
    monkeypatch.setattr(attention, "_kernel", REAL_KERNEL)
    torch.testing.assert_close(packed_logits(head, some_texts(), "flex"), expected, rtol=1e-4, atol=1e-4)


def plus_one(name: str) -> Callable[[pytest.MonkeyPatch], None]:
    """A function of the layout gives one more."""

    def break_it(patch: pytest.MonkeyPatch) -> None:
        intact = getattr(rules, name)
        patch.setattr(rules, name, lambda layout: intact(layout) + 1)

    return break_it


def one_mask_too_many(patch: pytest.MonkeyPatch) -> None:
    intact = rules.own_masks_visible
    patch.setattr(rules, "own_masks_visible", lambda offsets, masks: intact(offsets + 1, masks))


def masks_start_at_zero(patch: pytest.MonkeyPatch) -> None:
    def rows(layout: Layout) -> Tensor:
        return torch.where(layout.row_offset > 0, layout.row_offset, layout.prefixes[layout.row_group] - 1)

    patch.setattr(rules, "row_positions", rows)
    patch.setattr(rules, "mask_positions", lambda layout: torch.arange(1, DEPTH).expand(len(layout.prefixes), -1))


def texts_continue_each_other(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(rules, "clean_positions", lambda layout: torch.arange(sum(layout.lengths)))


def groups_see_the_next_group(patch: pytest.MonkeyPatch) -> None:
    one_text, intact = attention._one_text, rules.visibility
    patch.setattr(attention, "_one_text", lambda q, k, v, masks, *rest: one_text(q, k, v, masks.roll(-DEPTH, 0), *rest))

    def visibility(layout: Layout) -> Any:
        sees, clean, masks = intact(layout), sum(layout.lengths), DEPTH - 1
        last = clean + len(layout.prefixes) * masks - 1
        return lambda b, h, q, k: sees(b, h, q, torch.where(k < clean, k, (k - masks).clamp(min=clean, max=last)))

    patch.setattr(rules, "visibility", visibility)


def texts_see_each_other(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Layout, "group_text", lambda layout: torch.zeros(len(layout.prefixes), dtype=torch.int64))
    intact = attention._segments
    patch.setattr(
        attention,
        "_segments",
        lambda layout, q, clean, masks: intact(layout, q, (clean[0].roll(3, 0), clean[1].roll(3, 0)), masks),
    )


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("break_it", "noticed_by"),
    [
        (plus_one("visible_before"), "leak"),
        (plus_one("row_positions"), "apart"),
        (plus_one("mask_positions"), "apart"),
        (one_mask_too_many, "apart"),
        (masks_start_at_zero, "apart"),
        (texts_continue_each_other, "apart"),
        (groups_see_the_next_group, "apart"),
        (texts_see_each_other, "leak"),
    ],
)
def test_a_broken_pass_is_noticed(
    make_head: MakeHead,
    monkeypatch: pytest.MonkeyPatch,
    break_it: Callable[[pytest.MonkeyPatch], None],
    noticed_by: str,
    backend: str,
) -> None:
    break_it(monkeypatch)
    assert CHECKS[noticed_by](make_head(), backend) > 1e-2


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_window_of_another_length_is_noticed(
    make_head: MakeHead, monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    monkeypatch.setattr(rules, "visible_from", lambda layout: (rules.visible_before(layout) - 3).clamp(min=0))
    assert apart(make_head(attention_window=3), backend) < 1e-4
    assert apart(make_head(attention_window=4), backend) > 1e-2


@pytest.mark.parametrize(
    "break_it",
    [plus_one("row_positions"), plus_one("mask_positions"), masks_start_at_zero, texts_continue_each_other],
)
def test_misplaced_rows_are_noticed_whatever_they_see(
    monkeypatch: pytest.MonkeyPatch, break_it: Callable[[pytest.MonkeyPatch], None]
) -> None:
    break_it(monkeypatch)
    assert misplaced() > 0


def test_only_wanted_rows_are_computed_and_in_order(make_head: MakeHead) -> None:
    head, text = make_head(), make_text(4, 20)
    packed = [PackedText(text, torch.tensor([4, 9, 17]))]
    wanted = torch.tensor([[1, 1, 0, 0, 0], [0, 0, 1, 0, 1], [0, 0, 0, 1, 0]]).bool()
    everything = packed_hidden(head, packed, torch.ones_like(wanted)).unflatten(0, (3, DEPTH))
    for backend in BACKENDS:
        torch.testing.assert_close(packed_hidden(head, packed, wanted, backend), everything[wanted])


def gradients(head: DraftHead, parts: list[tuple[list[PackedText], Tensor]], backend: str = "segments") -> list[Tensor]:
    head.zero_grad()
    for packed, scale in parts:
        (packed_logits(head, packed, backend) * scale).sum().backward()
    return [parameter.grad.clone() for parameter in head.parameters() if parameter.grad is not None]


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_equal_those_of_one_prefix_at_a_time_and_of_float64(make_head: MakeHead, backend: str) -> None:
    packed = some_texts()
    weight = torch.randn(10, DEPTH, 97, generator=torch.Generator().manual_seed(0))
    head = make_head().requires_grad_(True)
    together = gradients(head, [(packed, weight)], backend)
    alone = [
        PackedText(entry.text, entry.prefixes[row : row + 1]) for entry in packed for row in range(len(entry.prefixes))
    ]
    wide = head.double()
    apart = gradients(wide, [([entry], weight[row : row + 1].double()) for row, entry in enumerate(alone)])
    assert len(together) == len(list(head.parameters()))
    for left, right in zip(together, apart, strict=True):
        assert right.dtype == torch.float64
        torch.testing.assert_close(left.double(), right, rtol=1e-3, atol=1e-3 * float(right.abs().max()))


def test_the_gradient_in_float64_is_the_slope_of_the_logits(make_head: MakeHead) -> None:
    head, packed = make_head().double().requires_grad_(True), some_texts()[:1]
    weight = torch.randn(5, DEPTH, 97, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = gradients(head, [(packed, weight)])
    generator = torch.Generator().manual_seed(1)
    for parameter, gradient in zip(head.parameters(), found, strict=True):
        direction = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        values = []
        for sign in (1, -1):
            with torch.no_grad():
                parameter += sign * 1e-5 * direction
                values.append((packed_logits(head, packed) * weight).sum())
                parameter -= sign * 1e-5 * direction
        torch.testing.assert_close((values[0] - values[1]) / 2e-5, (gradient * direction).sum(), rtol=1e-4, atol=1e-4)
