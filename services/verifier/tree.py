"""Candidate trees: checking, cutting to a budget, positions and attention for one pass, and the walk. Pure.

Rows of a pass: row 0 is the root (the pending token x[n]), row i + 1 is node i of the `Tree`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dartspec.services.common.errors import InvalidArgument
from dartspec.services.common.types import Int32, Tree


class Walk:
    """The way of the target's own choices down a tree, as far as they have been made.

    tokens: what is committed, in order; at the end the last one is the new pending token, or that of the answer.
    rows: the pass's rows whose logits choose them; rows[0] is the root's row 0, and rows[-1] is the one that chooses
    next, or chose last. accepted: how many of the tokens were candidates of the tree, A.
    """

    __slots__ = ("_children", "accepted", "rows", "tokens")

    def __init__(self, tree: Tree) -> None:
        self.tokens: list[int] = []
        self.rows = [0]
        self.accepted = 0
        edges = zip(tree.parents.tolist(), tree.token_ids.tolist(), strict=True) if len(tree) else ()
        self._children = {edge: i + 1 for i, edge in enumerate(edges)}

    def step(self, token: int, ends: bool) -> bool:
        """The target has chosen ``token`` at the last of the rows; whether it chooses another one. ends: the answer is
        over with it."""
        self.tokens.append(token)
        child = self._children.get((self.rows[-1], token))
        if child is None:
            return False
        self.accepted += 1
        if not ends:
            self.rows.append(child)
        return not ends


def check_tree(tree: Tree, vocab_size: int) -> None:
    """Raise InvalidArgument unless parents come before children, ids are known and siblings are distinct."""
    nodes = len(tree)
    bad = np.flatnonzero((tree.token_ids < 0) | (tree.token_ids >= vocab_size))
    if len(bad):
        token = tree.token_ids[bad[0]]
        raise InvalidArgument("tree.token_ids", f"id {token} at node {bad[0]} is not in the vocabulary of {vocab_size}")
    bad = np.flatnonzero((tree.parents < 0) | (tree.parents > np.arange(nodes)))
    if len(bad):
        raise InvalidArgument(
            "tree.parents", f"parent {tree.parents[bad[0]]} of node {bad[0]} is not the root or an earlier node"
        )
    edges = tree.parents.astype(np.int64) * vocab_size + tree.token_ids
    if len(np.unique(edges)) != nodes:
        raise InvalidArgument("tree.token_ids", "two children of one node carry the same token")
    if not ((tree.survival >= 0) & (tree.survival <= 1)).all():
        raise InvalidArgument("tree.survival", "a probability is outside [0, 1]")


def depths(tree: Tree) -> Int32:
    """Depth of each row, int32 [nodes + 1]; the root's is 0."""
    depth = [0]
    for parent in tree.parents.tolist():
        depth.append(depth[parent] + 1)
    return np.array(depth, dtype=np.int32)


def cut(tree: Tree, budget: int, max_depth: int) -> Tree:
    """The ``budget`` nodes of highest survival no deeper than ``max_depth``; every kept node's ancestors are kept."""
    if len(tree) <= min(budget, max_depth):
        return tree
    survival = tree.survival.tolist()
    for node, parent in enumerate(tree.parents.tolist()):
        # A child that claims more than its parent would break closure, so it counts as likely as the parent.
        if parent:
            survival[node] = min(survival[node], survival[parent - 1])
    shallow = depths(tree)[1:] <= max_depth
    # Stable: among equals the smaller index, hence a parent before its child.
    order = np.argsort(-np.array(survival), kind="stable")
    keep = np.sort(order[shallow[order]][: max(budget, 0)])
    if len(keep) == len(tree):
        return tree
    new_index = np.zeros(len(tree) + 1, dtype=np.int32)
    new_index[keep + 1] = np.arange(1, len(keep) + 1)
    return Tree(tree.token_ids[keep], new_index[tree.parents[keep]], tree.survival[keep], tree.feature_bins[keep])


def visible_rows(tree: Tree) -> NDArray[np.bool_]:
    """Which rows of the pass a row attends to: its ancestors and itself. bool [nodes + 1, nodes + 1]."""
    rows = len(tree) + 1
    visible = np.zeros((rows, rows), dtype=bool)
    visible[0, 0] = True
    for node, parent in enumerate(tree.parents):
        visible[node + 1] = visible[parent]
        visible[node + 1, node + 1] = True
    return visible
