"""The adaptive budget against brute force and by hand."""

from __future__ import annotations

import numpy as np
import pytest

from dartspec.services.common.types import Tree
from dartspec.services.verifier.budget import FIRST_PAUSE, RETRY_ROUNDS, TRIAL_ROUNDS, AdaptiveBudget, FixedBudget, Gain
from dartspec.services.verifier.cost import CostTable, measure

TABLE = CostTable.of((1, 2, 9, 17, 60), (40.0, 40.0, 44.0, 52.0, 90.0))


def tree_of(survival: list[float]) -> Tree:
    """A star; only its survival matters here."""
    n = len(survival)
    return Tree(
        np.arange(n, dtype=np.int32), np.zeros(n, np.int32), np.array(survival, np.float32), np.zeros(n, np.uint16)
    )


def run_round(budget: AdaptiveBudget, gain: Gain, accepted: int, nodes: int = 8) -> None:
    tree = tree_of([0.1] * nodes)
    budget.observe(gain, tree, accepted, accepted + 1, float(TABLE.pass_ms(nodes + 1)))


def test_table_interpolates_and_never_falls() -> None:
    table = CostTable.of((1, 5, 9), (10.0, 8.0, 18.0))
    assert table.pass_ms(5) == 10.0
    assert table.pass_ms(7) == 14.0
    assert table.pass_ms(18) == 36.0


def test_measure_times_every_size_and_the_largest() -> None:
    seen: list[int] = []
    table = measure(seen.append, 60)
    assert set(seen) == {1, 2, 3, 5, 9, 13, 17, 25, 33, 49, 60}
    assert (np.diff(table.milliseconds) >= 0).all()


@pytest.mark.parametrize("seed", range(20))
def test_nodes_maximise_expected_tokens_per_second(seed: int) -> None:
    rng = np.random.default_rng(seed)
    survival = np.sort(rng.random(59) ** rng.integers(1, 8))[::-1]
    budget = AdaptiveBudget(TABLE, limit=59, overhead_ms=6.0)
    rates = [(1 + survival[:b].sum()) / (float(TABLE.pass_ms(b + 1)) + 6.0) for b in range(60)]
    assert budget.nodes(tree_of(rng.permutation(survival).tolist()), forced=False) == int(np.argmax(rates))


def test_hopeless_candidates_are_not_verified_unless_forced() -> None:
    budget = AdaptiveBudget(CostTable.of((1, 2, 3), (10.0, 20.0, 30.0)), limit=8, overhead_ms=1.0)
    hopeless = tree_of([1e-6, 1e-6])
    assert budget.nodes(hopeless, forced=False) == 0
    assert budget.nodes(hopeless, forced=True) == 1
    assert budget.nodes(Tree.empty(), forced=True) == 0


def test_calibration_follows_what_is_accepted() -> None:
    budget = AdaptiveBudget(TABLE, limit=59, overhead_ms=6.0)
    for _ in range(400):
        budget.observe(Gain(), tree_of([0.5, 0.5]), 0, 1, 44.0)
    # 0.99 geometric sums: the expectation tends to 1 / (1 - 0.99), the accepted tokens to nothing.
    assert budget.calibration < 0.02


def test_a_session_without_gain_pauses_and_tries_again() -> None:
    budget = AdaptiveBudget(TABLE, limit=59, overhead_ms=6.0)
    gain = Gain()
    for _ in range(TRIAL_ROUNDS):
        assert budget.pays(gain)
        run_round(budget, gain, accepted=0)
    # 1 token in 44 + 6 ms against 1 in 40.
    chances = [budget.pays(gain) for _ in range(FIRST_PAUSE + 1)]
    assert chances == [False] * FIRST_PAUSE + [True]
    for _ in range(RETRY_ROUNDS):
        run_round(budget, gain, accepted=0)
    chances = [budget.pays(gain) for _ in range(2 * FIRST_PAUSE + 1)]
    assert chances == [False] * 2 * FIRST_PAUSE + [True]
    for _ in range(RETRY_ROUNDS):
        run_round(budget, gain, accepted=2)
    # 3 tokens in 50 ms.
    assert all(budget.pays(gain) for _ in range(20))


def test_a_session_with_gain_goes_on() -> None:
    budget = AdaptiveBudget(TABLE, limit=59, overhead_ms=6.0)
    gain = Gain()
    for _ in range(50):
        assert budget.pays(gain)
        run_round(budget, gain, accepted=1)


def test_overhead_counts() -> None:
    budget = AdaptiveBudget(TABLE, limit=59, overhead_ms=6.0)
    gain = Gain()
    for _ in range(TRIAL_ROUNDS):
        run_round(budget, gain, accepted=1)
    assert budget.pays(gain)
    for _ in range(100):
        budget.observe_overhead(60.0)
    # 2 tokens in 44 + 60 ms against 1 in 40.
    assert not budget.pays(gain)


def test_fixed_budget_cuts_and_always_drafts() -> None:
    budget = FixedBudget(3)
    assert budget.nodes(tree_of([0.9] * 10), forced=False) == 3
    assert budget.nodes(tree_of([0.9]), forced=False) == 1
    assert budget.pays(Gain(rounds=1000))
