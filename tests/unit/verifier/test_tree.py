"""Trees: what is refused, what a budget keeps, who sees whom, and where the walk goes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dartspec.services.common.errors import InvalidArgument
from dartspec.services.common.types import Tree
from dartspec.services.verifier.tree import check_tree, cut, depths, visible_rows

from .walks import walk


def tree_of(edges: Sequence[tuple[int, int]], survival: Sequence[float] | None = None) -> Tree:
    """From (parent, token) of each node; the bins number the nodes, to recognise them after a cut."""
    values = [0.5] * len(edges) if survival is None else survival
    return Tree(
        np.array([token for _, token in edges], np.int32),
        np.array([parent for parent, _ in edges], np.int32),
        np.array(values, np.float32),
        np.arange(len(edges), dtype=np.uint16),
    )


#          root -> 1:7 -> 3:7 -> 5:8
#               -> 2:8 -> 4:7, 6:9
SIX = [(0, 7), (0, 8), (1, 7), (2, 7), (3, 8), (2, 9)]


@st.composite
def trees(draw: st.DrawFn, most: int = 14) -> Tree:
    edges: list[tuple[int, int]] = []
    for node in range(draw(st.integers(0, most))):
        edge = (draw(st.integers(0, node)), draw(st.integers(0, 3)))
        edges.append(edge if edge not in edges else (edge[0], 10 + node))
    # Any survival: not rising towards the root, equal, zero.
    survival = draw(st.lists(st.sampled_from([0.0, 0.25, 0.5, 0.5, 1.0]), min_size=len(edges), max_size=len(edges)))
    return tree_of(edges, survival)


def ancestors(tree: Tree, row: int) -> list[int]:
    """Rows from ``row`` to the root, both included."""
    rows = [row]
    while rows[-1]:
        rows.append(int(tree.parents[rows[-1] - 1]))
    return rows


@pytest.mark.parametrize(
    ("tree", "field", "message"),
    [
        (tree_of([(0, 7), (1, 100)]), "tree.token_ids", "id 100 at node 1 is not in the vocabulary of 100"),
        (tree_of([(0, -1)]), "tree.token_ids", "id -1 at node 0"),
        (tree_of([(1, 7)]), "tree.parents", "parent 1 of node 0"),
        (tree_of([(0, 7), (2, 7)]), "tree.parents", "parent 2 of node 1"),
        (tree_of([(0, 7), (-1, 7)]), "tree.parents", "parent -1 of node 1"),
        (tree_of([(0, 7), (1, 5), (0, 7)]), "tree.token_ids", "two children of one node"),
        (tree_of([(0, 7), (1, 5), (1, 6), (1, 5)]), "tree.token_ids", "two children of one node"),
        (tree_of([(0, 7)], [1.01]), "tree.survival", "outside"),
        (tree_of([(0, 7), (0, 8)], [0.5, -0.1]), "tree.survival", "outside"),
        (tree_of([(0, 7)], [float("nan")]), "tree.survival", "outside"),
    ],
)
def test_an_unsound_tree_is_refused(tree: Tree, field: str, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message) as caught:
        check_tree(tree, 100)
    assert caught.value.field == field


def test_sound_trees_pass() -> None:
    check_tree(Tree.empty(), 100)
    check_tree(tree_of(SIX), 100)
    check_tree(tree_of([(0, 0), (0, 99)], [0.0, 1.0]), 100)
    # The same token under two parents whose numbers and tokens add up alike.
    check_tree(tree_of([(0, 1), (1, 0), (0, 0), (1, 1)]), 2)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(trees(), st.integers(-1, 16), st.integers(0, 6))
def test_a_cut_is_closed_and_takes_the_likeliest(tree: Tree, budget: int, max_depth: int) -> None:
    check_tree(tree, 1000)
    depth = depths(tree)
    # The likelihood of a node is the least of its path's.
    likely = [min(tree.survival[row - 1] for row in ancestors(tree, node + 1)[:-1]) for node in range(len(tree))]
    shallow = [node for node in range(len(tree)) if depth[node + 1] <= max_depth]
    best = sorted(shallow, key=lambda node: (-likely[node], node))[: max(budget, 0)]
    kept = cut(tree, budget, max_depth)
    assert kept.feature_bins.tolist() == sorted(best)
    check_tree(kept, 1000)
    old_row = {0: 0, **{new + 1: int(old) + 1 for new, old in enumerate(kept.feature_bins)}}
    for new, old in enumerate(kept.feature_bins.tolist()):
        assert kept.token_ids[new] == tree.token_ids[old]
        assert kept.survival[new] == tree.survival[old]
        assert old_row[int(kept.parents[new])] == tree.parents[old]


def test_cut_of_small_budgets() -> None:
    tree = tree_of(SIX, [0.4, 0.6, 0.4, 0.3, 0.4, 0.6])
    assert len(cut(tree, 0, 9)) == 0
    assert cut(tree, 1, 9).token_ids.tolist() == [8]
    assert cut(tree, 2, 9).feature_bins.tolist() == [1, 5]
    assert cut(tree, 3, 9).feature_bins.tolist() == [0, 1, 5]  # of equals the first, hence the parent
    assert cut(tree, 6, 1).feature_bins.tolist() == [0, 1]
    assert len(cut(tree, 6, 0)) == 0
    assert cut(tree, 6, 9) is tree
    assert len(cut(Tree.empty(), 5, 5)) == 0


def test_a_child_that_claims_more_than_its_parent_does_not_come_without_it() -> None:
    tree = tree_of([(0, 1), (1, 2), (0, 3)], [0.1, 0.9, 0.5])
    assert cut(tree, 1, 9).feature_bins.tolist() == [2]
    assert cut(tree, 2, 9).feature_bins.tolist() == [0, 2]


@settings(max_examples=200, deadline=None, derandomize=True)
@given(trees())
def test_a_row_sees_its_ancestors_and_itself(tree: Tree) -> None:
    visible = visible_rows(tree)
    depth = depths(tree)
    assert visible.shape == (len(tree) + 1, len(tree) + 1)
    for row in range(len(tree) + 1):
        seen = ancestors(tree, row)
        assert np.flatnonzero(visible[row]).tolist() == sorted(seen)
        assert depth[row] == len(seen) - 1


def follow(tree: Tree, script: Sequence[int], ends_at: int | None = None) -> tuple[list[int], list[int], int]:
    """Walk with a target that chooses ``script`` one after another, whatever the row; ends at the token ``ends_at``."""
    chosen = iter(script)
    asked: list[int] = []

    def choose_at(row: int) -> int:
        asked.append(row)
        return next(chosen)

    walked = walk(tree, choose_at, lambda token: token == ends_at)
    assert asked == walked.rows
    return walked.tokens, walked.rows, walked.accepted


def test_the_walk_of_an_empty_tree_chooses_once() -> None:
    assert follow(Tree.empty(), [4]) == ([4], [0], 0)


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ([1], ([1], [0], 0)),
        ([7, 9], ([7, 9], [0, 1], 1)),
        ([7, 7, 7], ([7, 7, 7], [0, 1, 3], 2)),
        # Equal tokens at different depths: the full way down, and one token of the target's own.
        ([7, 7, 8, 8], ([7, 7, 8, 8], [0, 1, 3, 5], 3)),
        ([8, 7, 7], ([8, 7, 7], [0, 2, 4], 2)),
        ([8, 9, 0], ([8, 9, 0], [0, 2, 6], 2)),
        ([8, 8], ([8, 8], [0, 2], 1)),
        # A child of another node does not count.
        ([9], ([9], [0], 0)),
    ],
)
def test_the_walk_follows_the_targets_choices(script: list[int], expected: tuple[list[int], list[int], int]) -> None:
    assert follow(tree_of(SIX), script) == expected


@pytest.mark.parametrize("offset", range(6))
def test_the_walk_stops_behind_an_ending_token_at_any_offset(offset: int) -> None:
    script = [10, 11, 12, 13, 14, 15]
    tree = tree_of(list(enumerate(script[:5])))
    tokens, rows, accepted = follow(tree, script, ends_at=script[offset])
    assert tokens == script[: offset + 1]
    assert rows == list(range(offset + 1))
    # The last one is a token of the target's own, after the whole chain was accepted.
    assert accepted == min(offset + 1, 5)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(trees(), st.lists(st.integers(0, 4), min_size=16, max_size=16), st.integers(0, 20))
def test_the_walk_equals_a_naive_one(tree: Tree, script: list[int], ends_at: int) -> None:
    row, tokens, rows, accepted = 0, [], [], 0
    for token in script:
        tokens.append(token)
        rows.append(row)
        children = [n + 1 for n in range(len(tree)) if tree.parents[n] == row and tree.token_ids[n] == token]
        if not children:
            break
        accepted += 1
        if token == ends_at:
            break
        (row,) = children
    assert follow(tree, script, ends_at) == (tokens, rows, accepted)
