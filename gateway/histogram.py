"""Values counted by bucket, for the metrics."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

# Upper bounds of buckets in seconds.
INTER_TOKEN_BOUNDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.5, 1.0, 2.0, 5.0)
FIRST_TOKEN_BOUNDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0)
REQUEST_BOUNDS = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0)


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
