"""How many nodes of the offered trees a pass verifies, over all its sessions, and whether drafting pays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from dartspec.services.common.types import Tree
from dartspec.services.verifier.gain import Gain


class Outcome(NamedTuple):
    """What a pass did for one session that decoded.

    offered: nodes of the tree that it brought. tree: what was verified of it. accepted: tokens of that.
    """

    gain: Gain
    offered: int
    tree: Tree
    accepted: int
    committed: int


@dataclass(frozen=True)
class Shape:
    """Rows of a pass, and positions that each attends to besides, in the mean."""

    rows: int
    context: float


@dataclass(frozen=True)
class Times:
    """Milliseconds. cycle_ms: since the end of the pass before; None when there was nothing to do in between."""

    pass_ms: float
    cycle_ms: float | None


class Budget(Protocol):
    """The decisions of the verifier about speculation."""

    @property
    def search_nodes(self) -> int:
        """How many nodes of a tree are worth searching for now."""

    def admit(self, trees: Sequence[Tree], forced: Sequence[bool], shape: Shape) -> list[int]:
        """Nodes to verify of each tree in a pass that has ``shape`` without them.

        Sessions that decode plainly have an empty tree. Of a forced tree at least one node, if there is one.
        """

    def pays(self, gain: Gain, sessions: int) -> bool:
        """Whether a session with this gain should draft now, while so many decode; called once for every chance.

        sessions: also those that will miss the next pass, since their candidates are being searched.
        """

    def draft_offsets(self, sessions: int) -> int:
        """How many offsets are worth drafting now, while so many sessions decode; the head may have fewer."""

    def observe(self, outcomes: Sequence[Outcome], shape: Shape, times: Times, drafted: int, away: int) -> None:
        """A pass of this shape, trees included, is done; after the pass before it ``drafted`` sessions drafted.

        away: sessions that decode and missed it, since their candidates are being searched.
        """

    def observe_overhead(self, milliseconds: float) -> None:
        """The engine spent this much between two passes with trees: draft, search, transport."""


class FixedBudget:
    """The likeliest ``limit`` nodes of every tree, drafting always."""

    def __init__(self, limit: int) -> None:
        self.limit = limit

    @property
    def search_nodes(self) -> int:
        return self.limit

    def admit(self, trees: Sequence[Tree], forced: Sequence[bool], shape: Shape) -> list[int]:
        return [min(self.limit, len(tree)) for tree in trees]

    def pays(self, gain: Gain, sessions: int) -> bool:
        return True

    def draft_offsets(self, sessions: int) -> int:
        return max(self.limit, 1)  # no path has more nodes than its tree

    def observe(self, outcomes: Sequence[Outcome], shape: Shape, times: Times, drafted: int, away: int) -> None:
        """Nothing depends on it."""

    def observe_overhead(self, milliseconds: float) -> None:
        """Nothing depends on it."""
