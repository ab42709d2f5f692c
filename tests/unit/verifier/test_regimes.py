"""Which way a replica decodes, against made-up rates: it finds the better one, keeps it and loses little by looking."""

from __future__ import annotations

import numpy as np
import pytest

from dartspec.services.verifier.regimes import FIRST_PAUSE, LONGEST_PAUSE, TRY_DRAFTS, Regimes

PLAIN_MS = 40.0


class Replica:
    """Sessions that commit a token a cycle, or with drafts some more in longer cycles."""

    def __init__(self, regimes: Regimes, sessions: int, seed: int = 0) -> None:
        self.regimes = regimes
        self.sessions = sessions
        self.random = np.random.default_rng(seed)
        self.tokens = self.milliseconds = 0.0

    def run(self, cycles: int, gain: float) -> float:
        """So many cycles in which drafting is worth ``gain`` times plain decoding; tokens over those of plain."""
        tokens = milliseconds = 0.0
        for _ in range(cycles):
            drafting = self.regimes.drafting(self.sessions)
            if drafting:
                # Each commits 1 to 3, in the mean 2.
                found, spent = int(self.random.integers(1, 4, self.sessions).sum()), 2 * PLAIN_MS / gain
            else:
                found, spent = self.sessions, PLAIN_MS
            spent *= self.random.uniform(0.9, 1.1)
            self.regimes.observe(drafting, self.sessions, found, spent)
            tokens += found
            milliseconds += spent
        return tokens / milliseconds * PLAIN_MS / self.sessions


@pytest.mark.parametrize("begins", [True, False])
@pytest.mark.parametrize("gain", [0.3, 0.7, 0.9, 1.0, 1.1, 1.5, 2.5])
@pytest.mark.parametrize("sessions", [1, 16])
def test_it_comes_close_to_the_better_way(gain: float, sessions: int, begins: bool) -> None:
    replica = Replica(Regimes(lambda _: begins), sessions)
    replica.run(500, gain)
    assert replica.run(3000, gain) >= 0.98 * max(gain, 1.0)


@pytest.mark.parametrize("sessions", [1, 16])
def test_it_follows_a_change_both_ways(sessions: int) -> None:
    replica = Replica(Regimes(lambda _: True), sessions)
    replica.run(3000, 1.6)
    assert replica.run(200, 0.5) > 0.7
    assert replica.run(1000, 0.5) > 0.98
    # Tries are at most so far apart.
    replica.run(LONGEST_PAUSE + 50, 1.6)
    assert replica.run(1000, 1.6) > 1.5


def test_unlucky_first_rounds_do_not_decide() -> None:
    regimes = Regimes(lambda _: True)
    regimes.observe(False, 1, 1, PLAIN_MS)
    # Two rounds of one token in the time of 1.2.
    for _ in range(2):
        regimes.observe(True, 1, 1, 1.2 * PLAIN_MS)
    assert regimes.drafting(1)


def test_cycles_that_were_neither_do_not_count_as_evidence() -> None:
    regimes = Regimes(lambda _: True)
    for _ in range(20):
        regimes.observe(None, 4, 4, 1e6)
    assert regimes.drafting(4)


def test_more_sessions_do_not_begin_with_what_lost_with_fewer() -> None:
    asked: list[int] = []
    regimes = Regimes(lambda sessions: asked.append(sessions) or True)
    Replica(regimes, 4).run(100, 0.3)
    assert not regimes.drafting(4)
    assert not regimes.drafting(30)
    assert regimes.drafting(2)
    assert asked == [4, 2]


def test_a_slow_first_round_does_not_decide_but_some_do() -> None:
    """The head reads a session's whole prompt before its first draft, and makes up for it later."""
    regimes = Regimes(lambda _: True)
    for _ in range(4):
        regimes.observe(False, 2, 2, 28.0)
    for _ in range(3):
        regimes.observe(True, 2, 3, 74.0)
        assert regimes.drafting(2)
    regimes.observe(True, 2, 3, 74.0)  # eight rounds
    assert not regimes.drafting(2)


@pytest.mark.parametrize(("sessions", "stays"), [(2, True), (5, True), (6, False), (40, False)])
def test_many_sessions_draft_only_for_a_gain_that_pays_for_waiting_prompts(sessions: int, stays: bool) -> None:
    regimes = Regimes(lambda _: True)
    for _ in range(400):
        if regimes.drafting(sessions):
            regimes.observe(True, sessions, 2 * sessions, 2 * PLAIN_MS / 1.04)
        else:
            regimes.observe(False, sessions, sessions, PLAIN_MS)
    regimes.observe(None, sessions, sessions, PLAIN_MS)
    assert regimes._class(sessions).drafting is stays


def test_many_sessions_begin_plainly_and_draft_after_the_first_try_that_pays() -> None:
    replica = Replica(Regimes(lambda _: True), 8)
    assert not replica.regimes.drafting(8)
    assert replica.regimes.drafting(5)
    replica.run(FIRST_PAUSE + TRY_DRAFTS, 1.5)
    assert replica.regimes._class(8).drafting


@pytest.mark.parametrize(("sessions", "cycles"), [(8, 6), (16, 4), (32, 3), (64, 2)])
def test_a_try_with_many_sessions_is_short_and_does_not_count_the_heads_catching_up(sessions: int, cycles: int) -> None:
    regimes = Regimes(lambda _: False)
    while not regimes.drafting(sessions):
        regimes.observe(False, sessions, sessions, PLAIN_MS)
    regimes.observe(True, sessions, sessions, 100 * PLAIN_MS)  # this one would decide alone
    tried = 1
    while regimes._class(sessions).trying:
        # 1.03 times as fast as plain decoding: too little for many, and not so bad that the try is given up.
        regimes.observe(True, sessions, 2 * sessions, 2 * PLAIN_MS / 1.03)
        tried += 1
    assert tried == cycles
    assert regimes._class(sessions).drafts.milliseconds < 2 * TRY_DRAFTS * PLAIN_MS


@pytest.mark.parametrize(
    ("sessions", "expected", "pause"),
    [(4, False, 32), (8, True, 32), (8, False, 256), (16, False, 512), (64, False, 1024)],
)
def test_many_sessions_of_which_nobody_expects_a_gain_try_late(sessions: int, expected: bool, pause: int) -> None:
    regimes = Regimes(lambda _: expected)
    waited = 0
    while not regimes.drafting(sessions):
        regimes.observe(False, sessions, sessions, PLAIN_MS)
        waited += 1
    assert waited == pause


def test_tries_with_many_sessions_are_so_far_apart_that_they_cost_a_hundredth() -> None:
    regimes = Regimes(lambda _: True)
    pauses, pause = [], 0
    while len(pauses) < 3:
        if regimes.drafting(16):
            # The heads catch up for a cycle, and one of half the rate of plain decoding ends the try: 3 + 2 cycles are
            # spent on what plain decoding makes in 2.
            for milliseconds in (3 * PLAIN_MS, 2 * PLAIN_MS):
                regimes.observe(True, 16, 16, milliseconds)
            pauses.append(pause)
            pause = 0
        else:
            regimes.observe(False, 16, 16, PLAIN_MS)
            pause += 1
    assert pauses == [FIRST_PAUSE, pytest.approx(300, abs=2), pytest.approx(600, abs=4)]


def test_where_drafts_lost_with_fewer_many_sessions_try_late() -> None:
    regimes = Regimes(lambda _: True)
    Replica(regimes, 4).run(100, 0.3)
    for _ in range(200):
        regimes.observe(False, 20, 20, PLAIN_MS)
        assert not regimes.drafting(20)


def test_a_try_of_plain_decoding_does_not_stop_drafts_that_are_hardly_known() -> None:
    regimes = Regimes(lambda _: True)
    for _ in range(300):  # plain decoding was asked for: tries begin and end, and nobody drafts
        regimes.observe(False, 1, 1, 28.0)
        assert regimes._class(1).drafting
    for number in range(7):  # slow ones
        regimes.observe(True, 1, 1, 45.0)
        regimes.observe(False, 1, 1, 28.0)
        assert regimes._class(1).drafting, number
    for _ in range(3):
        regimes.observe(True, 1, 1, 45.0)
    assert not regimes._class(1).drafting


def test_tries_in_which_nobody_could_draft_do_not_become_rarer() -> None:
    regimes = Regimes(lambda _: False)
    tries, before = 0, False
    for _ in range(400):
        regimes.observe(False, 2, 2, 28.0)
        trying = regimes.drafting(2)
        tries += trying and not before
        before = trying
    assert tries >= 400 // (32 + 6) - 1
