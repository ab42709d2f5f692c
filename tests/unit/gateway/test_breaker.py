"""The circuit breaker, with a clock that the test sets."""

from __future__ import annotations

from dartspec.gateway.breaker import FAILURES, FIRST_REST_SECONDS, LAST_REST_SECONDS, Breaker, BreakerState

CLOSED, OPEN, HALF_OPEN = BreakerState.CLOSED, BreakerState.OPEN, BreakerState.HALF_OPEN


def opened(now: float = 0.0) -> Breaker:
    breaker = Breaker()
    for _ in range(FAILURES):
        breaker.failed(now)
    assert breaker.state(now) is OPEN
    return breaker


def test_it_opens_after_failures_in_a_row_only() -> None:
    breaker = Breaker()
    for _ in range(FAILURES - 1):
        breaker.failed(0.0)
    assert breaker.allows(0.0)
    breaker.succeeded()
    for _ in range(FAILURES - 1):
        breaker.failed(0.0)
    assert breaker.state(0.0) is CLOSED
    breaker.failed(0.0)
    assert breaker.state(0.0) is OPEN
    assert not breaker.allows(FIRST_REST_SECONDS * 0.99)


def test_a_stall_opens_it_at_once() -> None:
    breaker = Breaker()
    breaker.failed(0.0, stalled=True)
    assert breaker.state(0.0) is OPEN


def test_half_open_lets_one_trial_through() -> None:
    breaker = opened()
    now = FIRST_REST_SECONDS
    assert breaker.state(now) is HALF_OPEN
    assert breaker.allows(now)
    breaker.began("trial", now)
    assert not breaker.allows(now)
    breaker.succeeded()
    assert breaker.state(now) is CLOSED
    assert breaker.allows(now)


def test_a_trial_without_a_verdict_makes_room_for_another() -> None:
    breaker = opened()
    now = FIRST_REST_SECONDS
    breaker.began("trial", now)
    breaker.ended("one from before")
    assert not breaker.allows(now)
    breaker.ended("trial")
    assert breaker.state(now) is HALF_OPEN
    assert breaker.allows(now)


def test_failed_trials_make_it_rest_longer_up_to_a_bound() -> None:
    breaker = opened()
    now, rest = FIRST_REST_SECONDS, FIRST_REST_SECONDS
    for _ in range(10):
        breaker.began("trial", now)
        breaker.failed(now)
        breaker.ended("trial")
        rest = min(2 * rest, LAST_REST_SECONDS)
        assert breaker.state(now + 0.99 * rest) is OPEN
        now += rest
        assert breaker.state(now) is HALF_OPEN
    assert rest == LAST_REST_SECONDS
    breaker.succeeded()
    for _ in range(FAILURES):
        breaker.failed(now)
    assert breaker.state(now + FIRST_REST_SECONDS) is HALF_OPEN  # it begins anew


def test_failures_of_older_sessions_do_not_prolong_the_rest() -> None:
    breaker = opened()
    for _ in range(5):
        breaker.failed(0.5 * FIRST_REST_SECONDS)
    assert breaker.state(FIRST_REST_SECONDS) is HALF_OPEN


def test_progress_of_an_older_session_ends_the_rest() -> None:
    breaker = opened()
    breaker.succeeded()
    assert breaker.state(0.0) is CLOSED
    assert breaker.failures == 0
