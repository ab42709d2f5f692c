"""A replica in simulated time under a policy: passes take what a table says, drafts are right by chance."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from bench.synthetic_verifier.model import Cost, expected_accepted
from dartspec.gateway.policy import Pass, ReplicaPolicy

DEPTH = 8
ROUND_SECONDS = 0.003  # draft, search and transport
CREDIT = 4  # plain steps that a session goes on for before it asks again
RATES = {"easy": 0.8, "hard": 0.2}


@dataclass(frozen=True)
class Phase:
    """So many sessions until then, a share of them hard."""

    until: float
    sessions: int
    hard: float


@dataclass(frozen=True)
class Took:
    """One pass: when it ended, its seconds and the tokens expected of it, and the rates of both fixed modes then."""

    at: float
    seconds: float
    tokens: float
    plain: float
    dart: float


class Replica:
    """Runs a schedule. took: passes. switches: times by session."""

    def __init__(self, cost: Cost, seed: int) -> None:
        self._cost = cost
        self._rng = random.Random(seed)
        self._policy = ReplicaPolicy()
        self._sessions: dict[int, tuple[str, int]] = {}  # class and tokens left
        self._credit: Counter[int] = Counter()
        self._drafted: dict[int, bool] = {}
        self._ids = 0
        self.now = 0.0
        self.took: list[Took] = []
        self.switches: defaultdict[int, list[float]] = defaultdict(list)

    def run(self, schedule: Sequence[Phase]) -> None:
        for phase in schedule:
            while self.now < phase.until:
                self._fill(phase)
                self._pass(phase.sessions)

    def _fill(self, phase: Phase) -> None:
        while len(self._sessions) < phase.sessions:
            self._ids += 1
            label = "hard" if self._rng.random() < phase.hard else "easy"
            self._sessions[self._ids] = (label, self._rng.randrange(100, 300))
            self._policy.opened(self._ids, label)
        while len(self._sessions) > phase.sessions:
            self._end(next(iter(self._sessions)))

    def _end(self, session: int) -> None:
        del self._sessions[session]
        self._policy.closed(session)

    def _drafts(self, session: int) -> bool:
        if self._credit[session]:
            self._credit[session] -= 1
            return False
        drafts = self._policy.speculates(session, self.now)
        if not drafts:
            self._credit[session] = CREDIT - 1
        if drafts != self._drafted.setdefault(session, drafts):
            self.switches[session].append(self.now)
            self._drafted[session] = drafts
        return drafts

    def _pass(self, count: int) -> None:
        drafts = {session: self._drafts(session) for session in self._sessions}
        rows = sum(1 + DEPTH * drafting for drafting in drafts.values())
        seconds = self._cost.pass_ms(rows) / 1e3 * self._rng.uniform(0.97, 1.03) + ROUND_SECONDS * any(drafts.values())
        self.now += seconds
        by_class: dict[str, tuple[int, int, int]] = {}
        expected = plain = dart = 0.0
        for session, drafting in drafts.items():
            label, left = self._sessions[session]
            tokens = 1 + (self._accepted(RATES[label]) if drafting else 0)
            rounds, sum_tokens, steps = by_class.get(label, (0, 0, 0))
            by_class[label] = (rounds + drafting, sum_tokens + tokens * drafting, steps + (not drafting))
            mean = 1 + expected_accepted(RATES[label], DEPTH)
            expected += mean if drafting else 1
            plain, dart = plain + 1, dart + mean
            self._sessions[session] = (label, left - tokens)
        for session in [session for session, (_, left) in self._sessions.items() if left <= 0]:
            self._end(session)
        self._policy.observe(Pass(count, seconds, by_class), self.now)
        plain /= self._cost.pass_ms(count) / 1e3
        dart /= self._cost.pass_ms(count * (1 + DEPTH)) / 1e3 + ROUND_SECONDS
        self.took.append(Took(self.now, seconds, expected, plain, dart))

    def _accepted(self, rate: float) -> int:
        accepted = 0
        while accepted < DEPTH and self._rng.random() < rate:
            accepted += 1
        return accepted


def worst_window(took: Sequence[Took], begin: float, window: float) -> tuple[float, float]:
    """The lowest rate over a window of whole seconds, relative to the better fixed mode in it, and where it begins."""
    worst = (float("inf"), 0.0)
    for start in range(int(begin), int(took[-1].at - window) + 1):
        inside = [one for one in took if start <= one.at < start + window]
        tokens = sum(one.tokens for one in inside)
        better = max(sum(one.seconds * one.plain for one in inside), sum(one.seconds * one.dart for one in inside))
        worst = min(worst, (tokens / better, float(start)))
    return worst
