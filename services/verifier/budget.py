"""How many nodes of an offered tree a pass verifies."""

from __future__ import annotations

from dartspec.services.common.types import Tree


class Budget:
    """A fixed budget: the likeliest ``limit`` nodes of every tree."""

    def __init__(self, limit: int) -> None:
        self.limit = limit

    def nodes(self, tree: Tree) -> int:
        """Nodes of ``tree`` to verify, without its root."""
        return min(self.limit, len(tree))
