"""How many nodes of the offered trees a pass verifies, over all its sessions, and whether drafting pays.

The adaptive budget maximises the committed tokens per second that it expects of a pass with N sessions in R rows:
(N + sum of the survival of the B likeliest nodes) / (T_V(R + B) + what a round costs besides), every B. Plain decoding
is N / T_V(R), which is also what the pass is for sessions that did not draft.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from dartspec.services.common.types import Tree
from dartspec.services.verifier.cost import CostTable

# Weight of the newest round in the running means.
NEW = 0.1
# Rounds in which a new session drafts whatever they bring, since its acceptance is not known; and in a later try.
TRIAL_ROUNDS = 4
RETRY_ROUNDS = 2
# Chances to draft that a session lets pass before it tries again; doubles with every failure.
FIRST_PAUSE = 4
LONGEST_PAUSE = 64
# While drafting is not expected to pay, one session in so many passes may try whether that still holds.
PROBE_PASSES = 64
# A prior of this many accepted tokens keeps the calibration near 1 until there is evidence.
PRIOR = 20.0


@dataclass
class Gain:
    """What drafting has brought to one session."""

    rounds: int = 0  # since the last try began
    committed: float = 0.0  # running mean of tokens a round
    pass_ms: float = 0.0  # running mean of a round's pass by the cost table
    plain_ms: float = 0.0  # the same had nobody drafted
    trial: int = TRIAL_ROUNDS  # rounds still to make before the gain counts
    pause: int = 0  # chances still to let pass
    next_pause: int = FIRST_PAUSE

    def wait(self) -> None:
        """Let chances pass, more each time."""
        self.pause, self.next_pause = self.next_pause, min(2 * self.next_pause, LONGEST_PAUSE)


@dataclass(frozen=True)
class Outcome:
    """What a pass did for one session that decoded: the tree it verified, tokens accepted of it, tokens committed."""

    gain: Gain
    tree: Tree
    accepted: int
    committed: int


class Budget(Protocol):
    """The decisions of the verifier about speculation."""

    def admit(self, trees: Sequence[Tree], forced: Sequence[bool], rows: int) -> list[int]:
        """Nodes to verify of each tree in a pass that has ``rows`` rows without them.

        Sessions that decode plainly have an empty tree. Of a forced tree at least one node, if there is one.
        """

    def pays(self, gain: Gain, sessions: int) -> bool:
        """Whether a session with this gain should draft now, while so many decode; called once for every chance."""

    def observe(self, outcomes: Sequence[Outcome], rows: int, milliseconds: float) -> None:
        """A pass of ``rows`` rows, trees included, is done."""

    def observe_overhead(self, milliseconds: float) -> None:
        """The engine spent this much between two passes with trees: draft, search, transport."""


class FixedBudget:
    """The likeliest ``limit`` nodes of every tree, drafting always."""

    def __init__(self, limit: int) -> None:
        self.limit = limit

    def admit(self, trees: Sequence[Tree], forced: Sequence[bool], rows: int) -> list[int]:
        return [min(self.limit, len(tree)) for tree in trees]

    def pays(self, gain: Gain, sessions: int) -> bool:
        return True

    def observe(self, outcomes: Sequence[Outcome], rows: int, milliseconds: float) -> None:
        for outcome in outcomes:
            outcome.gain.rounds += bool(len(outcome.tree))

    def observe_overhead(self, milliseconds: float) -> None:
        """Nothing depends on it."""


class AdaptiveBudget:
    """As many nodes as pay by the cost table; sessions whose drafts do not pay decode plainly and try again later."""

    def __init__(self, cost: CostTable, limit: int, overhead_ms: float) -> None:
        self.cost = cost
        self.limit = limit
        self.overhead_ms = overhead_ms
        self._expected = PRIOR
        self._accepted = PRIOR
        # Running mean of the survival of a tree's likeliest node, second likeliest, and so on; None: no tree seen yet.
        self._profile: NDArray[np.float64] | None = None
        # Measured over expected pass time, of passes with and without trees by the bits of the number of sessions: what
        # else runs on the machine, and what several sessions cost beyond their rows.
        self._slowdowns: dict[tuple[bool, int], float] = {}
        self._passes = 0

    @property
    def calibration(self) -> float:
        """Accepted tokens over the sum of the survival that the searches estimated."""
        return self._accepted / self._expected

    def slowdown(self, trees: bool, sessions: int) -> float:
        """Measured over expected time of a pass; where not measured, as with fewer sessions or without trees."""
        for bits in range(sessions.bit_length(), -1, -1):
            if (found := self._slowdowns.get((trees, bits))) is not None:
                return found
        return self.slowdown(False, sessions) if trees else 1.0

    def admit(self, trees: Sequence[Tree], forced: Sequence[bool], rows: int) -> list[int]:
        tops = [np.sort(tree.survival)[::-1][: self.limit].astype(np.float64) for tree in trees]
        self._learn_profile([top for top in tops if len(top)])
        survival = np.concatenate(tops) if tops else np.zeros(0)
        if not len(survival):
            return [0] * len(trees)
        owner = np.repeat(np.arange(len(tops)), [len(top) for top in tops])
        order = np.argsort(-survival, kind="stable")
        best = self._best(survival[order], len(trees), rows)[0]
        counts = np.bincount(owner[order[:best]], minlength=len(trees))
        return [
            max(int(count), int(force and len(top) > 0)) for count, force, top in zip(counts, forced, tops, strict=True)
        ]

    def _learn_profile(self, tops: Sequence[NDArray[np.float64]]) -> None:
        for top in tops:
            padded = np.zeros(self.limit)
            padded[: len(top)] = top
            self._profile = padded if self._profile is None else self._profile + NEW * (padded - self._profile)

    def _best(self, survival: NDArray[np.float64], sessions: int, rows: int) -> tuple[int, float]:
        """The number of nodes, of falling survival, with the highest rate, and that over the rate of none."""
        gains = np.minimum(survival * self.calibration, 1.0)
        tokens = sessions + np.concatenate(([0.0], np.cumsum(gains)))
        spent = self.cost.pass_ms(np.arange(len(tokens), dtype=np.float64) + rows)
        spent = self.slowdown(True, sessions) * spent + self.overhead_ms
        rate = tokens / spent
        best = int(np.argmax(rate))
        plain = sessions / (self.slowdown(False, sessions) * float(self.cost.pass_ms(rows)))
        return best, float(rate[best]) / plain

    def worth(self, sessions: int) -> bool:
        """Whether drafting is expected to pay for trees as they have been, when ``sessions`` decode together."""
        if self._profile is None:
            return True
        return self._best(np.repeat(self._profile, sessions), sessions, sessions)[1] >= 1.0

    def pays(self, gain: Gain, sessions: int) -> bool:
        if gain.pause:
            gain.pause -= 1
            if gain.pause:
                return False
            gain.rounds, gain.trial = 0, RETRY_ROUNDS
        if gain.trial:
            if gain.rounds or self.worth(sessions) or self._may_probe():
                return True
        else:
            round_ms = self.slowdown(True, sessions) * gain.pass_ms + self.overhead_ms
            if gain.committed / round_ms >= 1.0 / (self.slowdown(False, sessions) * gain.plain_ms):
                gain.next_pause = FIRST_PAUSE
                return True
        gain.wait()
        return False

    def _may_probe(self) -> bool:
        if self._passes < PROBE_PASSES:
            return False
        self._passes = 0
        return True

    def observe(self, outcomes: Sequence[Outcome], rows: int, milliseconds: float) -> None:
        expected_ms = float(self.cost.pass_ms(rows))
        self._passes += 1
        key = (any(len(outcome.tree) for outcome in outcomes), len(outcomes).bit_length())
        known = self.slowdown(key[0], len(outcomes))
        self._slowdowns[key] = known + NEW * (milliseconds / expected_ms - known)
        plain_ms = float(self.cost.pass_ms(max(rows - sum(len(outcome.tree) for outcome in outcomes), 1)))
        for outcome in outcomes:
            tree, gain = outcome.tree, outcome.gain
            if not len(tree):
                continue
            gain.rounds += 1
            gain.trial = max(gain.trial - 1, 0)
            weight = max(NEW, 1.0 / gain.rounds)  # a plain mean at first
            gain.committed += weight * (outcome.committed - gain.committed)
            gain.pass_ms += weight * (expected_ms - gain.pass_ms)
            gain.plain_ms += weight * (plain_ms - gain.plain_ms)
            self._expected = 0.99 * self._expected + float(tree.survival.sum())
            self._accepted = 0.99 * self._accepted + outcome.accepted

    def observe_overhead(self, milliseconds: float) -> None:
        self.overhead_ms += NEW * (milliseconds - self.overhead_ms)
