"""Simulated rounds against a tree built by brute force."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from dartspec.services.draft.train.simulate import accepted_in_tree, rounds_of


@pytest.mark.parametrize("seed", range(8))
def test_tree_membership_equals_the_best_paths_by_enumeration(seed: int) -> None:
    random = np.random.default_rng(seed)
    depth, width = 4, 3
    logprobs = np.sort(np.log(random.dirichlet(np.ones(width + 2), depth))[:, :width], axis=1)[:, ::-1].astype(
        np.float32
    )
    paths = [path for length in range(1, depth + 1) for path in itertools.product(range(width), repeat=length)]
    paths.sort(key=lambda path: -sum(float(logprobs[level, rank]) for level, rank in enumerate(path)))
    for budget in (1, 5, 16, 59, len(paths)):
        kept = set(paths[:budget])
        for ranks in itertools.product(range(-1, width), repeat=depth):
            expected = 0
            while expected < depth and ranks[: expected + 1] in kept:
                expected += 1
            assert accepted_in_tree(logprobs, np.array(ranks), budget) == expected


def test_a_text_that_ends_early_accepts_no_more_than_it_holds() -> None:
    logprobs = np.log(np.full((3, 2), [0.6, 0.4], dtype=np.float32))
    assert accepted_in_tree(logprobs, np.array([0]), 10) == 1
    assert accepted_in_tree(logprobs, np.array([], dtype=np.int64), 10) == 0


def test_rounds_walk_the_text() -> None:
    assert rounds_of([2, 9, 9, 0, 1, 5]) == [3, 1, 2]
    assert rounds_of([]) == []
