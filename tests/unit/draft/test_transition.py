"""The transition score against its definition, and what simulated rounds make of it."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from dartspec.services.draft.head import Transition
from dartspec.services.draft.train.simulate import accepted_in_tree, conditional


def test_a_block_holds_the_score_of_every_pair_of_neighbours() -> None:
    torch.manual_seed(0)
    transition = Transition(11, 3).requires_grad_(False)
    transition.left.normal_()
    transition.right.normal_()
    candidates = torch.stack([torch.randperm(11)[:4] for _ in range(10)]).unflatten(0, (2, 5))
    block = transition.block(candidates)
    assert block.shape == (2, 4, 4, 4)
    for row, offset, before, after in itertools.product(range(2), range(4), range(4), range(4)):
        u, v = candidates[row, offset, before], candidates[row, offset + 1, after]
        expected = sum(transition.left[u, r] * transition.right[r, v] for r in range(3))
        torch.testing.assert_close(block[row, offset, before, after], expected)


def test_conditional_probabilities_move_mass_among_the_candidates_only() -> None:
    logprobs = np.log(np.array([[0.5, 0.2], [0.4, 0.3]], dtype=np.float32))
    scores = conditional(logprobs, np.array([[[0.0, 0.0], [0.0, np.log(4.0)]]], dtype=np.float32))
    # after the second candidate, 0.4 and 4 * 0.3 beside 0.3 for all other tokens
    np.testing.assert_allclose(np.exp(scores[0]), [[0.4, 0.3], [0.4 / 1.9, 1.2 / 1.9]], rtol=1e-6)


@pytest.mark.parametrize("seed", range(6))
def test_a_tree_with_transitions_equals_the_best_paths_by_enumeration(seed: int) -> None:
    random = np.random.default_rng(seed)
    depth, width = 4, 3
    logprobs = np.sort(np.log(random.dirichlet(np.ones(width + 2), depth))[:, :width], axis=1)[:, ::-1]
    scores = conditional(logprobs, 2.0 * random.standard_normal((depth - 1, width, width)))
    paths = [path for length in range(1, depth + 1) for path in itertools.product(range(width), repeat=length)]

    def total(path: tuple[int, ...]) -> float:
        steps = [float(scores[level][path[level], path[level + 1]]) for level in range(len(path) - 1)]
        return float(logprobs[0, path[0]]) + sum(steps)

    paths.sort(key=total, reverse=True)
    for budget in (1, 5, 16, len(paths)):
        kept = set(paths[:budget])
        for ranks in itertools.product(range(-1, width), repeat=depth):
            expected = 0
            while expected < depth and ranks[: expected + 1] in kept:
                expected += 1
            assert accepted_in_tree(logprobs, np.array(ranks), budget, scores) == expected
