"""What comes out of the real walk has exactly the target's law, whatever the trees.

200,000 seeds, a vocabulary of 5, random trees: the joint frequencies of three tokens against the probabilities that
follow from the processed softmax of every prefix (the ancestral law), by chi-square.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from dartspec.services.common.types import Float32, Sampling, Tree
from dartspec.services.verifier import noise
from dartspec.services.verifier.edits import History
from dartspec.services.verifier.sampling import choose

from .naive_noise import naive_philox
from .walks import walk

UInt64 = NDArray[np.uint64]

VOCAB = 5
STEPS = 3
SEEDS = 200_000
FIRST_POSITION = 11
# A test of a true law fails with this probability; the seeds are fixed, so it does not flicker.
ALPHA = 1e-4

CASES = {
    "temperature": Sampling(0.8, STEPS),
    "filters_and_penalties": Sampling(1.1, STEPS, top_k=4, top_p=0.95, frequency_penalty=1.0, repetition_penalty=1.3),
}


def logits_after(prefix: tuple[int, ...]) -> Float32:
    """A target: any function of the prefix does."""
    rng = np.random.default_rng([7, *prefix])
    return rng.normal(scale=1.5, size=VOCAB).astype(np.float32)


def law(sampling: Sampling) -> dict[tuple[int, ...], float]:
    """Probability of each triple, by plain arithmetic on the definitions."""
    return {
        triple: float(np.prod([softmax_at(triple[:i], sampling)[triple[i]] for i in range(STEPS)]))
        for triple in itertools.product(range(VOCAB), repeat=STEPS)
    }


def softmax_at(prefix: tuple[int, ...], sampling: Sampling) -> list[float]:
    z = [float(value) for value in logits_after(prefix)]
    if sampling.repetition_penalty != 1.0:
        for v in set(prefix):
            z[v] = z[v] / sampling.repetition_penalty if z[v] > 0 else z[v] * sampling.repetition_penalty
    z = [(z[v] - sampling.frequency_penalty * prefix.count(v)) / sampling.temperature for v in range(VOCAB)]
    order = sorted(range(VOCAB), key=lambda v: (-z[v], v))[: sampling.top_k or VOCAB]
    mass = sum(np.exp(z[v]) for v in order)
    kept, total = [], 0.0
    for v in order:
        kept.append(v)
        total += np.exp(z[v]) / mass
        if total >= sampling.top_p:
            break
    weights = [np.exp(z[v]) if v in kept else 0.0 for v in range(VOCAB)]
    return [weight / sum(weights) for weight in weights]


def random_trees(count: int) -> list[Tree]:
    rng = random.Random(3)
    trees = []
    for _ in range(count):
        edges: list[tuple[int, int]] = []
        for _ in range(rng.randint(0, 25)):
            edge = (rng.randint(0, len(edges)), rng.randrange(VOCAB))
            if edge not in edges:
                edges.append(edge)
        parents, tokens = ([edge[i] for edge in edges] for i in (0, 1))
        trees.append(
            Tree(
                np.array(tokens, np.int32),
                np.array(parents, np.int32),
                np.ones(len(edges), np.float32),
                np.zeros(len(edges), np.uint16),
            )
        )
    return trees


def paths_of(tree: Tree) -> list[tuple[int, ...]]:
    """Tokens from the root to each row."""
    paths: list[tuple[int, ...]] = [()]
    for parent, token in zip(tree.parents.tolist(), tree.token_ids.tolist(), strict=True):
        paths.append((*paths[parent], token))
    return paths


def run_walks(
    tree: Tree,
    paths: list[tuple[int, ...]],
    seed: int,
    sampling: Sampling,
    logits: Callable[[tuple[int, ...]], Float32],
) -> list[int]:
    """Rounds of the real walk until three tokens are there. A row's logits are those of the path to it."""
    tokens: list[int] = []
    history = History()
    while len(tokens) < STEPS:
        before = len(tokens)
        prefix = tuple(tokens)

        def choose_at(row: int, prefix: tuple[int, ...] = prefix) -> int:
            position = FIRST_POSITION + len(tokens)
            token = choose(logits(prefix + paths[row]), position, history, sampling, seed, frozenset())
            tokens.append(token)
            history.append(token)
            return token

        walked = walk(tree, choose_at, lambda token: len(tokens) >= STEPS)
        assert tokens[before:] == walked.tokens
    return tokens


@pytest.fixture(scope="module")
def noise_of_all_seeds() -> Iterator[UInt64]:
    """The real noise of every seed and position, computed at once, since a call for each would take minutes."""
    seeds = np.arange(SEEDS, dtype=np.uint64)[:, None, None]
    positions = np.arange(FIRST_POSITION, FIRST_POSITION + STEPS, dtype=np.uint64)[None, :, None]
    counters = np.arange(-(-VOCAB // 4), dtype=np.uint64)
    table = naive_philox(counters, positions, seeds)  # [seeds, positions, counters, 4]
    for seed, position in ((0, 0), (12_345, 1), (SEEDS - 1, 2)):
        words = noise.philox(counters, FIRST_POSITION + position, seed)
        np.testing.assert_array_equal(table[seed, position], np.stack(words, axis=-1))

    def philox(counters: NDArray[np.integer], position: int, seed: int) -> tuple[UInt64, ...]:
        return tuple(table[seed, position - FIRST_POSITION, counters].T)

    def philox_once(counter: int, position: int, seed: int) -> list[int]:
        return table[seed, position - FIRST_POSITION, counter].tolist()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(noise, "philox", philox)
        patch.setattr(noise, "philox_once", philox_once)
        yield table


@pytest.mark.usefixtures("noise_of_all_seeds")
@pytest.mark.parametrize("name", CASES)
def test_joint_law_of_three_tokens(name: str) -> None:
    sampling = CASES[name]
    table = {prefix: logits_after(prefix) for n in range(STEPS) for prefix in itertools.product(range(VOCAB), repeat=n)}
    trees = [(tree, paths_of(tree)) for tree in random_trees(50)]
    # Each case has seeds of its own; together they are all.
    seeds = SEEDS // len(CASES)
    first = list(CASES).index(name) * seeds
    counts = Counter(
        tuple(run_walks(*trees[seed % len(trees)], seed, sampling, table.__getitem__))
        for seed in range(first, first + seeds)
    )
    expected = {triple: seeds * p for triple, p in law(sampling).items()}
    # What the law gives no chance must never come.
    assert all(expected[triple] > 0 for triple in counts)
    likely = [triple for triple, count in expected.items() if count >= 5]
    rare = [triple for triple, count in expected.items() if 0 < count < 5]
    observed = [counts[triple] for triple in likely] + [sum(counts[triple] for triple in rare)] * bool(rare)
    wanted = [expected[triple] for triple in likely] + [sum(expected[triple] for triple in rare)] * bool(rare)
    assert stats.chisquare(observed, wanted).pvalue > ALPHA


@pytest.mark.usefixtures("noise_of_all_seeds")
def test_the_chi_square_would_notice_a_wrong_law() -> None:
    sampling = CASES["temperature"]
    seeds = 20_000
    table = {prefix: logits_after(prefix) for n in range(STEPS) for prefix in itertools.product(range(VOCAB), repeat=n)}
    counts = Counter(tuple(run_walks(Tree.empty(), [()], seed, sampling, table.__getitem__)) for seed in range(seeds))
    wrong = law(Sampling(0.85, STEPS))
    triples = [triple for triple in wrong if seeds * wrong[triple] >= 5]
    observed = np.array([counts[triple] for triple in triples], dtype=float)
    wanted = np.array([wrong[triple] for triple in triples])
    assert stats.chisquare(observed, wanted / wanted.sum() * observed.sum()).pvalue < ALPHA
