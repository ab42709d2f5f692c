"""The learned policy in simulated time: never much worse than the better fixed mode, and calm."""

from __future__ import annotations

import pytest

from bench.synthetic_verifier.model import Cost
from dartspec.gateway.policy import Pass, ReplicaPolicy
from dartspec.gateway.rates import Level
from dartspec.gateway.switches import Switches
from tests.unit.gateway.policy_simulation import Phase, Replica, worst_window

# Rows are dear: with one session easy prompts gain by drafts and hard ones lose, with 64 all lose.
STEEP = Cost.parse("1:20,9:27,64:80,512:500")
# Rows are cheap: drafts gain with one session, and with 64 for easy prompts only.
FLAT = Cost.parse("1:30,64:30,256:60,576:140")
WARM_UP = 10.0


@pytest.mark.parametrize("cost", [STEEP, FLAT], ids=["steep", "flat"])
@pytest.mark.parametrize("hard", [0.0, 0.5, 1.0])
def test_a_load_that_comes_and_goes(cost: Cost, hard: float) -> None:
    replica = Replica(cost, seed=3)
    replica.run([Phase(30, 1, hard), Phase(60, 64, hard), Phase(90, 1, hard)])
    worst, begin = worst_window(replica.took, WARM_UP, 10.0)
    assert worst >= 0.95, f"at {begin} s"
    for times in replica.switches.values():
        assert max(sum(start <= at < start + 60 for at in times) for start in times) <= 6


def test_speculation_comes_back_when_load_falls() -> None:
    replica = Replica(STEEP, seed=4)
    replica.run([Phase(20, 1, 0.0), Phase(50, 64, 0.0)])
    crowded = [one for one in replica.took if one.at > 40]
    assert sum(one.tokens for one in crowded) < 1.1 * sum(one.seconds * one.plain for one in crowded)
    replica.run([Phase(60, 1, 0.0)])
    alone = [one for one in replica.took if one.at > 52]
    assert sum(one.tokens for one in alone) > 0.95 * sum(one.seconds * one.dart for one in alone)


def test_prompts_that_turn_hard_and_easy_again_are_followed() -> None:
    replica = Replica(STEEP, seed=5)
    replica.run([Phase(20, 4, 0.0), Phase(50, 4, 1.0), Phase(80, 4, 0.0)])
    worst, begin = worst_window(replica.took, 15.0, 10.0)
    assert worst >= 0.95, f"at {begin} s"


def test_a_class_that_is_new_is_left_to_the_verifier() -> None:
    policy = ReplicaPolicy()
    policy.opened(1, "a")
    assert policy.speculates(1, 0.0)


def test_worth_is_gain_over_what_its_time_brings_elsewhere() -> None:
    level = Level()
    for _ in range(50):
        level.observe({"a": (0, 0, 2), "b": (0, 0, 2)}, 0.1, 0)  # 4 tokens in 0.1 s
        level.observe({"a": (2, 8, 0), "b": (0, 0, 2)}, 0.2, 0)  # two drafting sessions cost 0.1 s more
    # a: M = 4, gains 3 tokens for 0.05 s a session. With it a pass commits 4 + 2 * 3 = 10 tokens in 0.2 s: 2.5 in the
    # 0.05 s of one more session. b, M = 2.25, gains 1.25: half of that.
    worth = level.worth({"a": 3.0, "b": 1.25})
    assert worth == pytest.approx({"a": 3.0 / 2.5, "b": 0.5}, rel=1e-3)


def test_others_sessions_count_in_what_time_is_worth() -> None:
    level = Level()
    for _ in range(50):
        level.observe({"a": (0, 0, 1)}, 0.1, 9)
        level.observe({"a": (1, 3, 0)}, 0.15, 9)
    # 10 tokens in 0.1 s, so 5 in the 0.05 s that drafting costs all ten, for a gain of 2.
    assert level.worth({"a": 2.0})["a"] == pytest.approx(2.0 / 5.0, rel=1e-3)


def test_a_pause_of_a_client_is_not_the_replicas() -> None:
    level = Level()
    for seconds in [0.1] * 10 + [5.0]:
        level.observe({"a": (0, 0, 1)}, seconds, 0)
    assert level.plain.value == pytest.approx(10.0)


def test_a_session_changes_six_times_a_minute_at_most() -> None:
    switches = Switches(drafting=False)
    ways = [switches.want(second % 2 == 0, float(second)) for second in range(120)]
    changes = [second for second in range(1, 120) if ways[second] != ways[second - 1]]
    assert all(later - earlier >= 60 for earlier, later in zip(changes, changes[6:], strict=False))
    assert len(changes) > 6  # and does change again later
    assert not switches.may_try(119.0)


def test_a_try_of_plain_decoding_is_for_all_sessions_and_short() -> None:
    policy = ReplicaPolicy()
    for session in (1, 2):
        policy.opened(session, "a")
    plain, now = [], 0.0
    for _ in range(60):
        drafting = [policy.speculates(session, now) for session in (1, 2)]
        assert drafting[0] == drafting[1]
        plain.append(not drafting[0])
        now += 0.1
        rounds = sum(drafting)
        policy.observe(Pass(2, 0.1, {"a": (rounds, 4 * rounds, 2 - rounds)}), now)
    assert 4 <= sum(plain) <= 8
