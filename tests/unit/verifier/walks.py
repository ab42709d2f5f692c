"""Whole walks down a tree, from a choice and an end that tests make up."""

from __future__ import annotations

from collections.abc import Callable

from dartspec.services.common.types import Tree
from dartspec.services.verifier.tree import Walk


def walk(tree: Tree, choose_at: Callable[[int], int], ends: Callable[[int], bool]) -> Walk:
    """Until nothing is chosen any more. choose_at: the token that is chosen at a row; ends: the answer is over with
    that token."""
    walked = Walk(tree)
    going = True
    while going:
        token = choose_at(walked.rows[-1])
        going = walked.step(token, ends(token))
    return walked
