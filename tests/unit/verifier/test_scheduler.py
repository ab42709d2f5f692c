"""Who goes along in a pass, and for whom a pass waits."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest

from dartspec.services.verifier.scheduler import MAX_DECODING, PREFILL_ROWS, SHARED_PREFILL_ROWS, choose
from dartspec.services.verifier.stragglers import (
    AWAY_PASSES,
    FIRST_PASS_SECONDS,
    FIRST_TURNAROUND_SECONDS,
    LATE,
    Stragglers,
)


@dataclass
class Waiting:
    """What the scheduler sees of a session."""

    prompt_left: int
    waiting_since: float = 0.0
    deadline: float | None = None

    @property
    def prefilling(self) -> bool:
        return self.prompt_left > 0


def test_everybody_who_decodes_goes_along_and_prompts_share_what_is_left() -> None:
    decoding = [Waiting(0) for _ in range(5)]
    long, short = Waiting(1000, waiting_since=1.0), Waiting(20, waiting_since=2.0)
    chosen, reading = choose([short, long, *decoding])  # type: ignore[list-item]
    assert chosen == decoding
    assert reading == [(long, SHARED_PREFILL_ROWS)]
    chosen, reading = choose([short, long])  # type: ignore[list-item]
    assert (chosen, reading) == ([], [(long, PREFILL_ROWS)])
    first = Waiting(100, waiting_since=0.0)
    assert choose([short, long, first])[1] == [(first, 100), (long, PREFILL_ROWS - 100)]  # type: ignore[list-item]


def test_more_than_a_pass_holds_take_turns() -> None:
    sessions = [Waiting(0, waiting_since=float(i)) for i in range(MAX_DECODING + 10)]
    random.Random(0).shuffle(sessions)
    chosen, _ = choose(sessions)  # type: ignore[arg-type]
    assert len(chosen) == MAX_DECODING
    assert max(session.waiting_since for session in chosen) == MAX_DECODING - 1


def missed(order: Callable[[Sequence[Waiting]], list[tuple[Waiting, int]]], seed: int) -> int:
    """Deadlines missed when prompts are read pass by pass, a second each, in an order."""
    rng = random.Random(seed)
    sessions = []
    for i in range(40):
        rows = rng.choice([50, 200, 1500])
        sessions.append(
            Waiting(rows, waiting_since=i / 100, deadline=i / 100 + rows / 100 + rng.choice([3.0, 15.0, 40.0]))
        )
    now, late = 0.0, 0
    while waiting := [session for session in sessions if session.prompt_left]:
        now += 1.0
        for session, rows in order(waiting):
            session.prompt_left -= rows
            assert session.deadline is not None
            late += session.prompt_left == 0 and now > session.deadline
    return late


def test_sessions_near_their_deadline_go_first() -> None:
    def first_come(waiting: Sequence[Waiting]) -> list[tuple[Waiting, int]]:
        left, reading = PREFILL_ROWS, []
        for session in sorted(waiting, key=lambda session: session.waiting_since):
            if left:
                reading.append((session, min(left, session.prompt_left)))
                left -= reading[-1][1]
        return reading

    def ours(waiting: Sequence[Waiting]) -> list[tuple[Waiting, int]]:
        return choose(waiting)[1]  # type: ignore[arg-type,return-value]

    late, late_first_come = (sum(missed(order, seed) for seed in range(10)) for order in (ours, first_come))
    assert late < 0.7 * late_first_come


def test_a_pass_waits_for_many_and_not_for_few() -> None:
    stragglers = Stragglers()
    for key in range(8):
        stragglers.left(key, 0.0)
    limit = LATE * FIRST_TURNAROUND_SECONDS
    assert stragglers.patience(2, 0.001) == pytest.approx(limit - 0.001)
    assert stragglers.patience(2, limit) == 0.0
    for key in range(7):
        stragglers.gone(key)
    crowd = int(FIRST_PASS_SECONDS / FIRST_TURNAROUND_SECONDS) + 1
    assert stragglers.patience(crowd, 0.001) == 0.0
    assert stragglers.patience(crowd - 2, 0.001) > 0.0
    stragglers.gone(7)
    assert stragglers.patience(1, 0.001) == 0.0


def test_turnaround_and_pass_are_learned() -> None:
    stragglers = Stragglers()
    now = 0.0
    for _ in range(200):
        stragglers.left(1, now)
        now += 0.010
        stragglers.arrived(1, now)
        stragglers.passed(0.5)
    stragglers.left(1, now)
    assert stragglers.patience(10, now) == pytest.approx(LATE * 0.010, rel=0.01)
    stragglers.arrived(1, now + 1000.0)  # one that slept does not make everybody wait
    stragglers.left(1, now)
    assert stragglers.patience(10, now) < 1.2 * LATE * 0.010


def test_sessions_whose_candidates_are_searched_are_away_until_they_stay_too_long() -> None:
    stragglers = Stragglers()
    for key in range(3):
        stragglers.left(key, now=10.0)
    assert stragglers.away(10.01) == 3
    stragglers.arrived(0, now=10.01)
    stragglers.gone(1)
    assert stragglers.away(10.01) == 1
    assert stragglers.away(10.0 + 0.99 * AWAY_PASSES * FIRST_PASS_SECONDS) == 1
    assert stragglers.away(10.0 + 1.01 * AWAY_PASSES * FIRST_PASS_SECONDS) == 0
