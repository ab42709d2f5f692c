"""The choice of a verifier: each policy, and the parts of the predicted seconds."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest

from dartspec.gateway.router import (
    ANY_SPEED,
    KV_SECONDS,
    LEAST_POWER,
    POLICIES,
    PROMPT_SHARE,
    Candidate,
    Load,
    Wanted,
    choose,
    predicted_seconds,
    speeds,
    weights,
)

WANTED = Wanted(prompt_tokens=0, answer_tokens=100.0, typical_tokens=100.0)


def candidates(**loads: Load) -> list[Candidate[str]]:
    return [Candidate(name, load) for name, load in loads.items()]


def chosen(policy: str, among: list[Candidate[str]], count: int = 40, wanted: Wanted = WANTED) -> Counter[str]:
    rng = random.Random(1)
    return Counter(choose(policy, among, wanted, rng, turn) for turn in range(count))


def test_round_robin_takes_turns_whatever_the_load() -> None:
    among = candidates(a=Load(reported=9), b=Load(), c=Load(kv_share=0.99))
    rng = random.Random(0)
    assert [choose("round_robin", among, WANTED, rng, turn) for turn in range(6)] == ["a", "b", "c", "a", "b", "c"]


@pytest.mark.parametrize("policy", ["least_loaded", "dart"])
def test_the_least_loaded_is_chosen(policy: str) -> None:
    assert set(chosen(policy, candidates(a=Load(reported=9), b=Load(reported=2), c=Load(reported=5)))) == {"b"}


@pytest.mark.parametrize("policy", ["least_loaded", "two_choices", "dart"])
def test_equals_share(policy: str) -> None:
    counts = chosen(policy, candidates(a=Load(), b=Load(), c=Load(reported=30), d=Load()), 1200)
    assert counts["c"] == 0
    assert all(300 < counts[name] < 500 for name in "abd")


def test_two_choices_may_take_the_second_best_but_never_the_worst() -> None:
    counts = chosen("two_choices", candidates(a=Load(), b=Load(reported=1), c=Load(reported=2)), 900)
    assert counts["c"] == 0
    assert 200 < counts["b"] < 400  # when a is not one of the two


def test_sessions_are_those_reported_and_sent_since_or_the_own_ones() -> None:
    assert Load(reported=2, own=2, sent=3).sessions == 5
    assert Load(reported=0, own=7).sessions == 7


def test_predicted_seconds_by_hand() -> None:
    among = [
        Candidate("a", Load(reported=3, own=1, sent=1, prompt_tokens=200, tokens_per_second=50.0, batch=2.0)),
        Candidate("b", Load(kv_share=0.5, tokens_per_second=50.0, batch=2.0), known_tokens=640),
    ]
    a, b = predicted_seconds(among, Wanted(prompt_tokens=1000, answer_tokens=60.0, typical_tokens=100.0))
    assert a == pytest.approx((4 * 100 + 60 + PROMPT_SHARE * 1200) / 50)
    assert b == pytest.approx((60 + PROMPT_SHARE * 360) / 50 + KV_SECONDS)


def test_how_much_speed_counts_grows_with_the_load() -> None:
    for sessions, power in ((0, LEAST_POWER), (32, 0.5), (96, 0.75)):
        loads = [Load(own=sessions, tokens_per_second=speed, batch=8.0) for speed in (80.0, 80.0, 20.0)]
        assert weights(loads) == pytest.approx([80.0, 80.0, 80.0 * 0.25**power])
    idle = candidates(slow=Load(tokens_per_second=40.0, batch=2.0), fast=Load(tokens_per_second=80.0, batch=2.0))
    assert set(chosen("dart", idle)) == {"fast"}


def test_a_full_cache_costs() -> None:
    full, busy = Load(kv_share=0.99), Load(reported=20)
    assert set(chosen("dart", candidates(full=full, busy=busy))) == {"busy"}
    assert set(chosen("dart", candidates(half=replace(full, kv_share=0.5), busy=busy))) == {"half"}


def test_a_known_prefix_attracts_until_the_load_differs_by_more() -> None:
    wanted = Wanted(prompt_tokens=2000, answer_tokens=100.0, typical_tokens=100.0)
    for others, expected in ((0, {"knows"}), (1, {"knows"}), (3, {"free"})):
        among = [Candidate("knows", Load(reported=others), known_tokens=1984), Candidate("free", Load())]
        assert set(chosen("dart", among, wanted=wanted)) == expected


def test_speeds_at_an_equal_number_of_sessions() -> None:
    loads = [Load(tokens_per_second=speed, batch=8.0) for speed in (100.0, 100.0, 50.0, 200.0)]
    assert speeds(loads) == [100.0, 100.0, 50.0, 200.0]


@pytest.mark.parametrize("shape", [0.0, 0.3, 0.7, 1.0])
def test_equal_replicas_look_equal_however_many_sessions_they_were_measured_with(shape: float) -> None:
    """shape: tokens per second grow like the number of sessions to this power."""
    loads = [Load(tokens_per_second=60 * batch**shape, batch=batch) for batch in (1.0, 2.0, 8.0, 30.0)]
    assert len({round(speed, 6) for speed in speeds(loads)}) == 1


@pytest.mark.parametrize("shape", [0.0, 0.3, 0.7, 1.0])
@pytest.mark.parametrize("batch", [2.0, 4.0, 8.0])
def test_a_slower_replica_is_never_taken_for_a_faster_one_or_for_slower_than_it_is(shape: float, batch: float) -> None:
    loads = [Load(tokens_per_second=60 * 4.0**shape, batch=4.0)] * 3
    slow = Load(tokens_per_second=30 * batch**shape, batch=batch)
    fast_speed, *_, slow_speed = speeds([*loads, slow])
    assert 0.5 - 1e-9 <= slow_speed / fast_speed <= 1.0


def test_an_unknown_speed_is_the_median() -> None:
    known = [Load(tokens_per_second=speed, batch=4.0) for speed in (40.0, 60.0, 100.0)]
    assert speeds([*known, Load(), Load(tokens_per_second=7.0)]) == [40.0, 60.0, 100.0, 60.0, 60.0]
    assert speeds([Load(), Load(reported=3)]) == [ANY_SPEED, ANY_SPEED]


def test_every_policy_takes_the_only_one_and_refuses_nobody() -> None:
    for policy in POLICIES:
        assert set(chosen(policy, candidates(a=Load(reported=5, kv_share=1.0)))) == {"a"}
        with pytest.raises(ValueError, match="no candidates"):
            choose(policy, [], WANTED, random.Random(0), 0)
    with pytest.raises(ValueError, match="no policy"):
        choose("best", candidates(a=Load()), WANTED, random.Random(0), 0)
