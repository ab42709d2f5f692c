"""Where two answers part, and the figures of a comparison, against values worked out by hand."""

from __future__ import annotations

import dataclasses

import pytest

from dartspec.cli.answer import Answer, Ledger
from dartspec.cli.compare import Difference, Pair, differing_tokens, first_difference, summarize
from dartspec.cli.report import comparison, identity_line

NO_ROUNDS = Ledger("plain", "", 0, 0, 0, 0, 0, 0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0)


def answer(token_ids: list[int], total_s: float = 1.0, ttft_s: float = 0.25, margin: float = 0.5, **ledger) -> Answer:
    return Answer(
        model="m",
        seed=1,
        prompt_tokens=3,
        text="",
        token_ids=tuple(token_ids),
        logprobs=tuple(-1.0 for _ in token_ids),
        margins=tuple(margin for _ in token_ids),
        top_logprobs=(),
        reason="stop",
        stop="",
        ledger=dataclasses.replace(NO_ROUNDS, **ledger),
        ttft_s=ttft_s,
        total_s=total_s,
    )


@pytest.mark.parametrize(
    ("plain", "dart", "expected", "count"),
    [
        ([1, 2, 3], [1, 2, 3], None, 0),
        ([], [], None, 0),
        ([1, 2, 3], [1, 9, 3], (1, 2, 9), 1),
        ([4], [5], (0, 4, 5), 1),
        ([1, 2, 3], [1, 2], (2, 3, None), 1),
        ([1], [1, 2, 3], (1, None, 2), 2),
        ([1, 2, 3, 4], [1, 5, 6], (1, 2, 5), 3),
    ],
)
def test_first_difference_and_count(plain, dart, expected, count):
    pair = Pair("p", answer(plain), answer(dart))
    found = first_difference(pair)
    assert (None if found is None else (found.index, found.plain_token, found.dart_token)) == expected
    assert differing_tokens(pair) == count


def test_gap_is_plains_margin_and_none_past_its_end():
    apart = first_difference(Pair("p", answer([1], margin=0.25), answer([2], margin=0.75)))
    assert apart.gap == 0.25
    assert first_difference(Pair("p", answer([1]), answer([1, 2]))).gap is None


def test_summary_takes_ratios_of_sums():
    pairs = [
        Pair(
            "a",
            answer([1] * 11, total_s=2.0, decode_ms=1000.0, plain_steps=10),
            answer(
                [1] * 11,
                total_s=1.0,
                decode_ms=500.0,
                dart_rounds=4,
                plain_steps=1,
                dart_committed=9,
                accepted=5,
                draft_ms=10.0,
                search_ms=5.0,
                verify_ms=100.0,
                wait_ms=2.5,
                other_ms=20.0,
                nodes_offered=32,
                nodes_verified=24,
            ),
        ),
        Pair(
            "b",
            answer([2] * 5, total_s=6.0, decode_ms=3000.0, plain_steps=4, ttft_s=0.75),
            answer([2] * 5, total_s=4.0, decode_ms=1500.0, dart_rounds=1, dart_committed=4, accepted=3, verify_ms=20.0),
        ),
    ]
    summary = summarize(pairs)
    assert summary.identical
    assert summary.differing_tokens == 0
    assert summary.plain_tokens_per_s == pytest.approx(16 / 8)
    assert summary.dart_tokens_per_s == pytest.approx(16 / 5)
    assert summary.speedup == pytest.approx(8 / 5)
    assert summary.median_speedup == pytest.approx((2.0 + 1.5) / 2)
    assert summary.plain_decode_tokens_per_s == pytest.approx(14 / 4)
    assert summary.dart_decode_tokens_per_s == pytest.approx(14 / 2)
    assert summary.decode_speedup == pytest.approx(2.0)
    assert summary.plain_ttft_ms == pytest.approx(500.0)
    assert summary.mean_committed == pytest.approx(13 / 5)
    assert summary.mean_accepted == pytest.approx(8 / 5)
    assert (summary.dart_rounds, summary.plain_steps) == (5, 1)
    assert (summary.nodes_offered, summary.nodes_verified) == (32, 24)
    # Six passes in DART mode: five rounds and one plain step.
    assert summary.t_draft_ms == pytest.approx(10 / 6)
    assert summary.t_search_ms == pytest.approx(5 / 6)
    assert summary.t_verify_ms == pytest.approx(120 / 6)
    assert summary.t_wait_ms == pytest.approx(2.5 / 6)
    assert summary.t_other_ms == pytest.approx(20 / 6)
    assert summary.t_plain_step_ms == pytest.approx(4000 / 14)


def test_means_over_nothing_are_none_and_shown_as_a_dash():
    summary = summarize([Pair("p", answer([1], total_s=0.5), answer([1], total_s=0.5))])
    assert summary.mean_committed is None
    assert summary.plain_decode_tokens_per_s is None
    assert summary.t_verify_ms is None
    assert "M - tokens committed" in comparison(summary)


def test_every_difference_is_listed_with_its_tokens():
    pairs = [Pair("first", answer([1, 2]), answer([1, 3])), Pair("second", answer([1]), answer([1, 4]))]
    summary = summarize(pairs)
    assert not summary.identical
    assert summary.differing_tokens == 2
    line = identity_line(summary.differences)
    assert line.startswith("identical: no")
    assert "prompt first: first at token 1: plain 2, DART 3" in line
    assert "prompt second: first at token 1: plain ended, DART 4" in line
    assert summary.to_json()["differences"][0] == dataclasses.asdict(Difference("first", 1, 2, 3, 0.5))
