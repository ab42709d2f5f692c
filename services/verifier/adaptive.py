"""The adaptive budget: as many nodes as pay, and plain decoding where drafts do not.

Of a pass with N sessions in R rows it maximises the committed tokens per second that it expects:
(N + sum of the survival of the B likeliest nodes) / (T_V(R + B) + what a round costs besides), every B. Plain decoding
is N / T_V(R), which is also what the pass is for sessions that did not draft.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dartspec.services.common.types import Tree
from dartspec.services.verifier.budget import Outcome, Shape, Times
from dartspec.services.verifier.concurrency import concurrency_class
from dartspec.services.verifier.cost import CostTable
from dartspec.services.verifier.draft_depth import DraftDepth
from dartspec.services.verifier.gain import NEW, Gain
from dartspec.services.verifier.regimes import Regimes

# A prior of this many accepted tokens keeps the calibration near 1 until there is evidence.
PRIOR = 20.0
# Weight of the newest round in the mean of all sessions.
USUAL_NEW = 0.02
# Searches are asked for this many times the nodes that trees got lately, so that a tree can grow again, and for so many
# at least. In steps, so that searches that go out together ask for the same. What trees got is forgotten at this rate.
SEARCH_HEADROOM = 1.5
LEAST_SEARCHED = 8
SEARCH_STEP = 8
FORGOTTEN = 0.05
# What a measured pass took is blamed on the machine up to this factor; beyond, somebody stopped it.
WORST_SLOWDOWN = 10.0
# Time between two passes beyond this factor of the usual, and so many milliseconds, is not a round's.
PAUSE_FACTOR = 5.0
PAUSE_MS = 50.0


class AdaptiveBudget:
    """Decides by the cost table, by what the searches' estimates have been worth, and by measured rates.

    overhead_ms: what a round costs besides its pass, as far as is known at start. drafts: how deep drafts are.
    """

    def __init__(self, cost: CostTable, limit: int, overhead_ms: float, drafts: DraftDepth) -> None:
        self.cost = cost
        self.limit = limit
        self.overhead_ms = overhead_ms
        self.drafts = drafts
        self.regimes = Regimes(self.worth)
        self._expected = PRIOR
        self._accepted = PRIOR
        # Running mean of the survival of a tree's likeliest node, second likeliest, and so on; None: no tree seen yet.
        self._profile: NDArray[np.float64] | None = None
        # Measured over expected pass time, of passes with and without trees by class of concurrency: what else runs on
        # the machine, and what several sessions cost beyond their rows.
        self._slowdowns: dict[tuple[bool, int], float] = {}
        self._context = 0.0  # of the last pass
        self._usual = 1.0  # running mean of the tokens that a round commits
        self._rounds = 0
        self._largest = float(limit)  # nodes that the largest tree of a pass got, lately

    @property
    def search_nodes(self) -> int:
        wanted = max(SEARCH_HEADROOM * self._largest, LEAST_SEARCHED)
        return min(-(-int(np.ceil(wanted)) // SEARCH_STEP) * SEARCH_STEP, self.limit)

    @property
    def calibration(self) -> float:
        """Accepted tokens over the sum of the survival that the searches estimated."""
        return self._accepted / self._expected

    def slowdown(self, trees: bool, sessions: int) -> float:
        """Measured over expected time of a pass; where not measured, as with fewer sessions or without trees."""
        for fewer in range(concurrency_class(sessions), -1, -1):
            if (found := self._slowdowns.get((trees, fewer))) is not None:
                return found
        return self.slowdown(False, sessions) if trees else 1.0

    def admit(self, trees: Sequence[Tree], forced: Sequence[bool], shape: Shape) -> list[int]:
        if not any(len(tree) for tree in trees):
            return [0] * len(trees)
        tops = [np.sort(tree.survival)[::-1][: self.limit].astype(np.float64) for tree in trees]
        self._learn_profile([top for top in tops if len(top)])
        survival = np.concatenate(tops)
        owner = np.repeat(np.arange(len(tops)), [len(top) for top in tops])
        order = np.argsort(-survival, kind="stable")
        best = self._best(survival[order], len(trees), shape)[0]
        counts = np.bincount(owner[order[:best]], minlength=len(trees))
        self._largest = max(float(counts.max()), (1.0 - FORGOTTEN) * self._largest)
        return [
            max(int(count), int(force and len(top) > 0)) for count, force, top in zip(counts, forced, tops, strict=True)
        ]

    def _learn_profile(self, tops: Sequence[NDArray[np.float64]]) -> None:
        for top in tops:
            padded = np.zeros(self.limit)
            padded[: len(top)] = top
            self._profile = padded if self._profile is None else self._profile + NEW * (padded - self._profile)

    def _best(self, survival: NDArray[np.float64], sessions: int, shape: Shape) -> tuple[int, float]:
        """The number of nodes, of falling survival, with the highest rate, and that over the rate of none."""
        gains = np.minimum(survival * self.calibration, 1.0)
        tokens = sessions + np.concatenate(([0.0], np.cumsum(gains)))
        spent = self.cost.pass_ms(np.arange(len(tokens), dtype=np.float64) + shape.rows, shape.context)
        plain = sessions / (self.slowdown(False, sessions) * float(spent[0]))
        spent = self.slowdown(True, sessions) * spent + self.overhead_ms
        rate = tokens / spent
        best = int(np.argmax(rate))
        return best, float(rate[best]) / plain

    def worth(self, sessions: int) -> bool:
        """Whether drafting is expected to pay for trees as they have been, when ``sessions`` decode together."""
        return self._profile is None or self._planned(self._profile, sessions)[1] >= 1.0

    def draft_offsets(self, sessions: int) -> int:
        def nodes() -> float:
            return self.limit if self._profile is None else self._planned(self._profile, sessions)[0] / sessions

        return self.drafts.offsets(sessions, nodes)

    def _planned(self, profile: NDArray[np.float64], sessions: int) -> tuple[int, float]:
        """As `_best` when every session brings such a tree."""
        return self._best(np.repeat(profile, sessions), sessions, Shape(sessions, self._context))

    def pays(self, gain: Gain, sessions: int) -> bool:
        if not self.regimes.drafting(sessions) or not gain.wants_chance():
            return False
        round_ms = self.slowdown(True, sessions) * gain.pass_ms + self.overhead_ms
        return gain.enough(round_ms, self.slowdown(False, sessions) * gain.plain_ms, self._usual)

    def _believed(self, milliseconds: float) -> float:
        """Time between two passes, cut where it looks like a client that made a pause rather than a round's own."""
        return min(milliseconds, PAUSE_FACTOR * self.overhead_ms + PAUSE_MS)

    def observe(self, outcomes: Sequence[Outcome], shape: Shape, times: Times, drafted: int, away: int) -> None:
        sessions = len(outcomes)
        nodes = sum(len(outcome.tree) for outcome in outcomes)
        with_trees = sum(len(outcome.tree) > 0 for outcome in outcomes)
        expected_ms = float(self.cost.pass_ms(shape.rows, shape.context))
        plain_ms = float(self.cost.pass_ms(max(shape.rows - nodes, 1), shape.context))
        self._context = shape.context
        known = self.slowdown(nodes > 0, sessions)
        ratio = min(times.pass_ms / expected_ms, WORST_SLOWDOWN)
        self._slowdowns[nodes > 0, concurrency_class(sessions)] = known + NEW * (ratio - known)
        if times.cycle_ms is not None and shape.rows == sessions + nodes:  # no prompt was read
            cycle_ms = times.pass_ms + self._believed(times.cycle_ms - times.pass_ms)
            way = None
            if 2 * max(with_trees, drafted) >= sessions:
                way = True
            elif not with_trees and not drafted and not away:
                way = False
            # Late sessions make small passes, which must not be taken for those of few sessions.
            self.regimes.observe(way, sessions, sum(outcome.committed for outcome in outcomes), cycle_ms, away)
        if nodes:
            trees = [outcome.tree for outcome in outcomes if len(outcome.tree)]
            round_ms, node_ms = times.pass_ms + self.overhead_ms, (expected_ms - plain_ms) / nodes
            self.drafts.observe(sessions + away, trees, round_ms, node_ms, self.calibration)
        for outcome in outcomes:
            if outcome.offered:
                self._rounds += 1
                self._usual += max(USUAL_NEW, 1.0 / self._rounds) * (outcome.committed - self._usual)
                outcome.gain.add(outcome.committed, expected_ms, plain_ms)
            if len(outcome.tree):
                self._expected = 0.99 * self._expected + float(outcome.tree.survival.sum())
                self._accepted = 0.99 * self._accepted + outcome.accepted

    def observe_overhead(self, milliseconds: float) -> None:
        self.overhead_ms += NEW * (self._believed(milliseconds) - self.overhead_ms)
