"""Which verifier gets a request: a pure choice."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

KV_WEIGHT = 4.0  # sessions that a half full KV cache weighs as much as
NEAR = 0.05  # costs within this of the least are equal

T = TypeVar("T")


@dataclass(frozen=True)
class Load:
    """A verifier's load as its gateway knows it.

    reported: sessions in its last report. own: sessions that this gateway has open there. sent: sessions that this
    gateway opened since the report. kv_share: part of the KV cache in use, in [0, 1].
    """

    reported: int = 0
    own: int = 0
    sent: int = 0
    kv_share: float = 0.0

    @property
    def cost(self) -> float:
        """Sessions that a new one would share with, and a term that grows without bound as the cache fills."""
        sessions = max(self.reported + self.sent, self.own)
        free = max(1.0 - self.kv_share, 1e-3)
        return sessions + KV_WEIGHT * self.kv_share / free


def choose(candidates: Sequence[tuple[T, Load]], rng: random.Random) -> T:
    """One of the candidates with the least cost, at random among near-equals, so that a burst spreads.

    Raises ValueError without candidates.
    """
    if not candidates:
        raise ValueError("no candidates")
    costs = [load.cost for _, load in candidates]
    limit = min(costs) * (1.0 + NEAR) + NEAR
    return rng.choice([target for (target, _), cost in zip(candidates, costs, strict=True) if cost <= limit])
