"""How many offsets a draft has: as many as bring more than they cost.

With many sessions a pass has room for a node or two of each, which are nearly all of the first offsets, while a draft
takes longer with every offset of every session. So an offset is drafted as long as its nodes' share of the tokens that
passes are expected to commit is larger than its share of the time. Of a node's survival that counts what it has beyond
the tokens that the time for its row in the pass is worth. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dartspec.services.common.types import Tree
from dartspec.services.verifier.concurrency import concurrency_class
from dartspec.services.verifier.tree import depths

# A tree needs two offsets to be one, and the worth of a third is judged by theirs.
LEAST = 2
# Weight of the newest pass in the running means.
NEW = 0.1
# Passes between two changes: trees that are still on their way have the depth of before.
HELD = 8
# An offset that is not drafted must promise so many times its cost.
PROMISE = 1.25


@dataclass
class _Class:
    """What is known of one class of concurrency. worth [1 + d]: shares of the tokens by offset; those of 0 are sure."""

    offsets: int
    worth: NDArray[np.float64]
    cost: float = 0.0  # share of the time that an offset takes
    passes: int = 0
    held: int = HELD


class DraftDepth:
    """The number of offsets by class of concurrency (`concurrency.py`).

    depth: of the head. row_ms: what a draft takes longer for one more offset of one session.
    """

    def __init__(self, depth: int, row_ms: float) -> None:
        self.depth, self.row_ms = depth, row_ms
        self._classes: dict[int, _Class] = {}

    def offsets(self, sessions: int, nodes: Callable[[], float]) -> int:
        """Offsets to draft when so many decode; ``nodes``: how many each of their trees is expected to get.

        Where nothing is known yet, about as deep as trees of that size are.
        """
        number = concurrency_class(sessions)
        if number not in self._classes:
            likely = 1 + int(np.ceil(nodes())).bit_length()
            self._classes[number] = _Class(min(max(likely, LEAST), self.depth), np.zeros(self.depth + 1))
        return self._classes[number].offsets

    def observe(
        self, sessions: int, trees: Sequence[Tree], round_ms: float, node_ms: float, calibration: float
    ) -> None:
        """A pass verified these trees, none empty, of so many sessions that decode.

        round_ms: of the whole round. node_ms: what of it is the pass's for each node of a tree. calibration: accepted
        tokens over what survivals promise.
        """
        known = self._classes.get(concurrency_class(sessions))
        if known is None or not trees:
            return
        survival = np.minimum(calibration * np.concatenate([tree.survival for tree in trees]).astype(np.float64), 1.0)
        depth = np.minimum(np.concatenate([depths(tree)[1:] for tree in trees]), self.depth)
        tokens = sessions + survival.sum()
        worth = np.bincount(depth, np.maximum(survival - tokens * node_ms / round_ms, 0.0), self.depth + 1) / tokens
        worth[0] = sessions / tokens
        known.passes += 1
        weight = max(NEW, 1.0 / known.passes)
        known.worth += weight * (worth - known.worth)
        known.cost += weight * (self.row_ms * len(trees) / round_ms - known.cost)
        known.held -= 1
        if known.held <= 0:
            self._adapt(known)

    def _adapt(self, known: _Class) -> None:
        last, before = known.worth[known.offsets], known.worth[known.offsets - 1]
        if known.offsets > LEAST and last < known.cost:
            known.offsets, known.held = known.offsets - 1, HELD
        elif known.offsets < self.depth and before > 0.0:
            promised = last * min(last / before, 1.0)
            if promised > PROMISE * known.cost:
                known.offsets, known.held = known.offsets + 1, HELD
                known.worth[known.offsets] = promised
