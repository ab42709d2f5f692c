"""How many nodes of an offered tree a pass verifies, and whether drafting pays.

The adaptive budget maximises the committed tokens per second that it expects: (1 + sum of the survival of the B
likeliest nodes) / (T_V(B + 1) + what a round costs besides), every B, against 1 / T_V(1) of plain decoding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

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
# A prior of this many accepted tokens keeps the calibration near 1 until there is evidence.
PRIOR = 20.0


@dataclass
class Gain:
    """What drafting has brought to one session."""

    rounds: int = 0  # since the last try began
    committed: float = 0.0  # running mean of tokens a round
    pass_ms: float = 0.0  # running mean of a round's pass by the cost table
    trial: int = TRIAL_ROUNDS  # rounds still to make before the gain counts
    pause: int = 0  # chances still to let pass
    next_pause: int = FIRST_PAUSE


class Budget(Protocol):
    """The decisions of the verifier about one session's speculation."""

    def nodes(self, tree: Tree, forced: bool) -> int:
        """Nodes of ``tree`` to verify, without its root. ``forced``: at least one, if there is one."""

    def pays(self, gain: Gain) -> bool:
        """Whether a session with this gain should draft now; called once for every chance to."""

    def observe(self, gain: Gain, tree: Tree, accepted: int, committed: int, verify_ms: float) -> None:
        """A pass over ``tree`` is done."""

    def observe_overhead(self, milliseconds: float) -> None:
        """A round spent this much outside the target pass: draft, search, transport."""


class FixedBudget:
    """The likeliest ``limit`` nodes of every tree, drafting always."""

    def __init__(self, limit: int) -> None:
        self.limit = limit

    def nodes(self, tree: Tree, forced: bool) -> int:
        return min(self.limit, len(tree))

    def pays(self, gain: Gain) -> bool:
        return True

    def observe(self, gain: Gain, tree: Tree, accepted: int, committed: int, verify_ms: float) -> None:
        gain.rounds += bool(len(tree))

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
        # Measured over expected pass time: what else runs on the machine now.
        self._slowdown = 1.0

    @property
    def calibration(self) -> float:
        """Accepted tokens over the sum of the survival that the searches estimated."""
        return self._accepted / self._expected

    def nodes(self, tree: Tree, forced: bool) -> int:
        count = min(self.limit, len(tree))
        if not count:
            return 0
        likeliest = np.sort(tree.survival)[::-1][:count].astype(np.float64)
        tokens = 1.0 + np.concatenate(([0.0], np.cumsum(np.minimum(likeliest * self.calibration, 1.0))))
        rate = tokens / (self._slowdown * self.cost.pass_ms(np.arange(1.0, count + 2)) + self.overhead_ms)
        best = int(np.argmax(rate))
        return max(best, 1) if forced else best

    def pays(self, gain: Gain) -> bool:
        if gain.trial:
            return True
        if gain.pause:
            gain.pause -= 1
            if not gain.pause:
                gain.rounds, gain.trial = 0, RETRY_ROUNDS
            return not gain.pause
        plain_ms = self._slowdown * float(self.cost.pass_ms(1))
        round_ms = self._slowdown * gain.pass_ms + self.overhead_ms
        if gain.committed / round_ms >= 1.0 / plain_ms:
            gain.next_pause = FIRST_PAUSE
            return True
        gain.pause, gain.next_pause = gain.next_pause, min(2 * gain.next_pause, LONGEST_PAUSE)
        return False

    def observe(self, gain: Gain, tree: Tree, accepted: int, committed: int, verify_ms: float) -> None:
        expected_ms = float(self.cost.pass_ms(len(tree) + 1))
        self._slowdown += NEW * (verify_ms / expected_ms - self._slowdown)
        if not len(tree):
            return
        gain.rounds += 1
        gain.trial = max(gain.trial - 1, 0)
        weight = max(NEW, 1.0 / gain.rounds)  # a plain mean at first
        gain.committed += weight * (committed - gain.committed)
        gain.pass_ms += weight * (expected_ms - gain.pass_ms)
        self._expected = 0.99 * self._expected + float(tree.survival.sum())
        self._accepted = 0.99 * self._accepted + accepted

    def observe_overhead(self, milliseconds: float) -> None:
        self.overhead_ms += NEW * (milliseconds - self.overhead_ms)
