"""Sums of a request's rounds, worked by hand."""

from __future__ import annotations

from dartspec.gateway.ledger import Ledger
from dartspec.gateway.types import Round, RoundKind


def a_round(kind: RoundKind, **fields: float) -> Round:
    return Round(kind, n=9, token_ids=(1,), logprobs=(-1.0,), **fields)  # type: ignore[arg-type]


def test_sums_and_the_rest() -> None:
    ledger = Ledger(arrived=10.0)
    ledger.opened(a_round(RoundKind.OPEN, draft_ms=2.0, verify_ms=400.0, wait_ms=7.0), now=10.5)
    ledger.searched(1.0)
    round = a_round(
        RoundKind.VERIFY, accepted=3, nodes_offered=20, nodes_verified=12, draft_ms=2.0, verify_ms=30.0, wait_ms=4.0
    )
    ledger.verified(round, now=10.550)
    ledger.delivered(round, tokens=2)
    ledger.searched(0.0, chain=True)
    ledger.decoded(a_round(RoundKind.DECODE, verify_ms=20.0, wait_ms=1.0), now=10.600)
    ledger.ended(now=10.7)
    assert (ledger.dart_rounds, ledger.plain_steps, ledger.dart_committed, ledger.accepted) == (1, 1, 4, 3)
    assert (ledger.nodes_offered, ledger.nodes_verified, ledger.rejected) == (20, 12, 9)
    assert ledger.delivered_accepted == 2
    assert ledger.chain_fallbacks == 1
    assert round_ms(ledger.ttft_ms) == 500.0
    assert round_ms(ledger.decode_ms) == 100.0
    assert round_ms(ledger.total_ms) == 700.0
    # The prefill's pass is in no sum; its draft is in draft_ms but not in the time after the first token.
    assert (ledger.draft_ms, ledger.search_ms, ledger.verify_ms, ledger.wait_ms) == (4.0, 1.0, 50.0, 5.0)
    assert round_ms(ledger.other_ms) == 100.0 - (2.0 + 1.0 + 50.0 + 5.0)


def test_a_change_of_replica_is_part_of_the_rest() -> None:
    ledger = Ledger(arrived=0.0)
    ledger.opened(a_round(RoundKind.OPEN, draft_ms=2.0), now=1.0)
    ledger.opened(a_round(RoundKind.OPEN, draft_ms=3.0, verify_ms=50.0), now=1.1)
    assert round_ms(ledger.ttft_ms) == 1000.0
    assert round_ms(ledger.decode_ms) == 100.0
    assert round_ms(ledger.other_ms) == 97.0


def test_an_answer_without_tokens() -> None:
    ledger = Ledger(arrived=5.0)
    ledger.ended(now=5.25)
    assert (ledger.ttft_ms, ledger.decode_ms, ledger.other_ms, ledger.total_ms) == (0.0, 0.0, 0.0, 250.0)


def round_ms(value: float) -> float:
    return round(value, 6)
