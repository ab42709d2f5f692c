"""Running means, rates and counts by depth. Not safe to be used by several threads at once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from dartspec.services.common.types import Int32

# Weight of the newest value in a running mean.
NEW = 0.1
# Seconds of work over which the rate of committed tokens is taken.
RATE_SECONDS = 10.0
# Depths that are told apart; what is deeper counts with the last.
DEPTHS = 32
# Upper bounds of the histograms' buckets, in seconds.
BOUNDS = (
    *(0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05),
    *(0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0),
)


class Mean:
    """A running mean; a plain one until the newest value weighs less than NEW."""

    def __init__(self) -> None:
        self.value = 0.0
        self._seen = 0

    def add(self, value: float) -> None:
        """Take a value."""
        self._seen += 1
        self.value += max(NEW, 1.0 / self._seen) * (value - self.value)


class Rate:
    """Tokens per second of the last RATE_SECONDS or so in which there was work."""

    def __init__(self) -> None:
        self._tokens = 0.0
        self._seconds = 0.0

    def add(self, tokens: int, seconds: float) -> None:
        """So many more tokens, after so much more work."""
        kept = math.exp(-seconds / RATE_SECONDS)
        self._tokens = kept * self._tokens + tokens
        self._seconds = kept * self._seconds + seconds

    @property
    def value(self) -> float:
        """Tokens per second; 0 before any work."""
        return self._tokens / self._seconds if self._seconds > 0 else 0.0


class DepthCounts:
    """Draft tokens by depth. verified, accepted: of depth 1, 2, ... up to the deepest seen, at most DEPTHS."""

    def __init__(self) -> None:
        self.verified: tuple[int, ...] = ()
        self.accepted: tuple[int, ...] = ()
        self.accepted_tokens = 0
        self._nodes = np.zeros(DEPTHS + 1, np.int64)  # by depth; index 0 is roots
        self._ends = [0] * (DEPTHS + 1)  # rounds by accepted tokens
        self._beyond = 0  # accepted tokens deeper than DEPTHS

    def add(self, rounds: Sequence[tuple[int, Int32]]) -> int:
        """Accepted tokens and the depth of every row, the root included, of each round; returns the tokens' sum."""
        nodes = np.bincount(np.concatenate([depth for _, depth in rounds]))
        if len(nodes) > DEPTHS + 1:
            nodes[DEPTHS] += nodes[DEPTHS + 1 :].sum()
            nodes = nodes[: DEPTHS + 1]
        self._nodes[: len(nodes)] += nodes
        total = 0
        for accepted, _ in rounds:
            total += accepted
            self._ends[min(accepted, DEPTHS)] += 1
            self._beyond += max(accepted - DEPTHS, 0)
        self.accepted_tokens += total
        deepest = max(len(self.verified), len(nodes) - 1)
        self.verified = tuple(self._nodes[1 : deepest + 1].tolist())
        # Whoever accepted A tokens accepted one at each depth up to A.
        reached = list(accumulate(reversed(self._ends[1 : deepest + 1])))[::-1]
        if deepest == DEPTHS:
            reached[-1] += self._beyond
        self.accepted = tuple(reached)
        return total
