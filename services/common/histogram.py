"""Values counted by bucket, for the metrics. Not safe to be used by several threads at once."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate


class Histogram:
    """How many values are at most each of ``bounds`` but above the one before, how many are above all; their sum."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def add(self, value: float, times: int = 1) -> None:
        """Take a value, so many times."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.sum += value * times

    def merge(self, other: Histogram) -> None:
        """Take the values of another one with the same bounds."""
        self.counts = [own + its for own, its in zip(self.counts, other.counts, strict=True)]
        self.sum += other.sum

    def copy(self) -> Histogram:
        """As it is now."""
        copied = Histogram(self.bounds)
        copied.merge(self)
        return copied

    def buckets(self) -> list[tuple[str, float]]:
        """Upper bounds, as Prometheus writes them, and how many values are at most that."""
        names = [*(f"{bound:g}" for bound in self.bounds), "+Inf"]
        return list(zip(names, accumulate(self.counts), strict=True))
