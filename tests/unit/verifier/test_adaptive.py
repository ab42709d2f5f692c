"""The adaptive budget against brute force and by hand."""

from __future__ import annotations

import numpy as np
import pytest

from dartspec.services.common.types import Tree
from dartspec.services.verifier.adaptive import AdaptiveBudget
from dartspec.services.verifier.budget import Budget, FixedBudget, Outcome, Shape, Times
from dartspec.services.verifier.cost import CostTable
from dartspec.services.verifier.draft_depth import DraftDepth
from dartspec.services.verifier.gain import FIRST_PAUSE, RETRY_ROUNDS, TRIAL_ROUNDS, Gain

TABLE = CostTable.of((1, 2, 9, 17, 60), (40.0, 40.0, 44.0, 52.0, 90.0))


def budget_of(cost: CostTable, limit: int, overhead_ms: float) -> AdaptiveBudget:
    """For a head of 8 offsets that cost nothing."""
    return AdaptiveBudget(cost, limit, overhead_ms, DraftDepth(8, 0.0))


def tree_of(survival: list[float]) -> Tree:
    """A star; only its survival matters here."""
    n = len(survival)
    return Tree(
        np.arange(n, dtype=np.int32), np.zeros(n, np.int32), np.array(survival, np.float32), np.zeros(n, np.uint16)
    )


def observe(
    budget: AdaptiveBudget,
    outcomes: list[Outcome],
    slowdown: float = 1.0,
    cycle_ms: float | None = None,
    drafted: int = 0,
    away: int = 0,
) -> None:
    """A pass that took so much longer than by the budget's table."""
    shape = Shape(sum(1 + len(outcome.tree) for outcome in outcomes), 0.0)
    times = Times(slowdown * float(budget.cost.pass_ms(shape.rows)), cycle_ms)
    budget.observe(outcomes, shape, times, drafted, away)


def outcome_of(gain: Gain, tree: Tree, accepted: int) -> Outcome:
    return Outcome(gain, len(tree), tree, accepted, accepted + 1)


def run_round(budget: AdaptiveBudget, gain: Gain, accepted: int, nodes: int = 8) -> None:
    observe(budget, [outcome_of(gain, tree_of([0.1] * nodes), accepted)])


def nodes_of(budget: Budget, tree: Tree, forced: bool = False) -> int:
    """What a session alone gets."""
    (count,) = budget.admit([tree], [forced], Shape(1, 0.0))
    return count


@pytest.mark.parametrize("seed", range(20))
def test_nodes_maximise_expected_tokens_per_second(seed: int) -> None:
    rng = np.random.default_rng(seed)
    survival = np.sort(rng.random(59) ** rng.integers(1, 8))[::-1]
    budget = budget_of(TABLE, 59, 6.0)
    rates = [(1 + survival[:b].sum()) / (float(TABLE.pass_ms(b + 1)) + 6.0) for b in range(60)]
    assert nodes_of(budget, tree_of(rng.permutation(survival).tolist())) == int(np.argmax(rates))


@pytest.mark.parametrize("seed", range(10))
def test_nodes_of_many_sessions_go_where_they_are_likeliest(seed: int) -> None:
    rng = np.random.default_rng(seed)
    trees = [np.round(rng.random(rng.integers(0, 20)) ** rng.integers(1, 8), 3) for _ in range(6)]
    budget = budget_of(TABLE, 59, 6.0)
    counts = budget.admit([tree_of(tree.tolist()) for tree in trees], [False] * 6, Shape(10, 0.0))
    everything = np.sort(np.concatenate(trees))[::-1]
    rates = [(6 + everything[:b].sum()) / (float(TABLE.pass_ms(10 + b)) + 6.0) for b in range(len(everything) + 1)]
    best = int(np.argmax(rates))
    assert sum(counts) == best
    kept = np.concatenate([np.sort(tree)[::-1][:count] for tree, count in zip(trees, counts, strict=True)])
    assert kept.sum() == pytest.approx(everything[:best].sum())


def test_a_session_that_decodes_plainly_shares_the_pass() -> None:
    budget = budget_of(TABLE, 59, 6.0)
    counts = budget.admit([Tree.empty(), tree_of([0.9, 0.8]), Tree.empty()], [False] * 3, Shape(3, 0.0))
    assert counts == [0, 2, 0]


def test_drafting_is_not_begun_where_the_table_is_steep() -> None:
    # One row costs as much as another from 4 rows on, so at 8 sessions no candidate below certainty is worth its row.
    steep = CostTable.of((1, 4, 100), (40.0, 40.0, 1000.0))
    budget = budget_of(steep, 8, 1.0)
    assert budget.worth(8)  # nothing is known yet
    budget.admit([tree_of([0.6, 0.3, 0.2])], [False], Shape(1, 0.0))
    assert budget.worth(1)
    assert not budget.worth(8)
    assert budget.pays(Gain(), 1)
    assert not budget.pays(Gain(), 8)


def test_what_cycles_take_decides_for_all_sessions() -> None:
    budget = budget_of(TABLE, 8, 6.0)
    tree = tree_of([0.5])
    for _ in range(100):
        # By the table two tokens a round are worth it; but other things make a cycle as long as three plain ones.
        if budget.pays(Gain(), 4):
            observe(budget, [outcome_of(Gain(), tree, 1)] * 4, cycle_ms=120.0, drafted=4)
        else:
            observe(budget, [outcome_of(Gain(), Tree.empty(), 0)] * 4, cycle_ms=40.0)
    assert not budget.pays(Gain(), 4)
    assert not budget.pays(Gain(), 9)  # nor with more
    assert budget.pays(Gain(), 1)


def test_sessions_that_miss_a_pass_count_among_those_that_decode() -> None:
    budget = budget_of(TABLE, 8, 6.0)
    for _ in range(100):
        # Three of twelve are in time: as many passes as sessions come apart, each as long as one of all.
        if budget.pays(Gain(), 12):
            observe(budget, [outcome_of(Gain(), tree_of([0.5]), 1)] * 3, cycle_ms=60.0, drafted=3, away=9)
        else:
            observe(budget, [outcome_of(Gain(), Tree.empty(), 0)] * 12, cycle_ms=60.0)
    assert not budget.pays(Gain(), 12)
    assert budget.pays(Gain(), 3)  # of which nothing has been seen


def test_passes_of_some_while_others_are_searched_say_nothing_of_plain_decoding() -> None:
    budget = budget_of(TABLE, 8, 6.0)
    for _ in range(20):
        observe(budget, [outcome_of(Gain(), Tree.empty(), 0)] * 4, cycle_ms=40.0)
        observe(budget, [outcome_of(Gain(), Tree.empty(), 0)], cycle_ms=40.0, away=3)  # a quarter of that rate
    plain = budget.regimes._class(4).plain
    assert plain.value == pytest.approx(4 / 40.0)


def test_rounds_of_a_pass_are_those_of_the_sessions_in_it() -> None:
    budget = budget_of(TABLE, 8, 6.0)
    observe(budget, [outcome_of(Gain(), tree_of([0.5]), 1)] * 2, cycle_ms=60.0, drafted=2, away=4)
    drafts = budget.regimes._class(6).drafts
    assert (drafts.rounds, drafts.tokens) == (2, 4)


def test_a_pause_of_a_client_counts_little() -> None:
    budget = budget_of(TABLE, 8, 6.0)
    budget.observe_overhead(16.0)
    assert budget.overhead_ms == pytest.approx(7.0)
    budget.observe_overhead(1e6)
    assert budget.overhead_ms < 20.0
    # What is always so long is believed in the end.
    for _ in range(100):
        budget.observe_overhead(300.0)
    assert budget.overhead_ms == pytest.approx(300.0, rel=0.01)


def test_what_passes_with_trees_cost_beyond_the_table_is_learned_by_the_number_of_sessions() -> None:
    budget = budget_of(TABLE, 59, 6.0)
    tree = tree_of([0.5])
    for _ in range(200):
        observe(budget, [outcome_of(Gain(), Tree.empty(), 0)] * 8)
        observe(budget, [outcome_of(Gain(), tree, 0)] * 8, slowdown=3.0)
    assert budget.slowdown(False, 8) == pytest.approx(1.0)
    assert budget.slowdown(True, 8) == pytest.approx(3.0, rel=1e-3)
    assert budget.slowdown(True, 40) == pytest.approx(3.0, rel=1e-3)  # as with fewer
    assert budget.slowdown(True, 1) == 1.0


def test_hopeless_candidates_are_not_verified_unless_forced() -> None:
    budget = budget_of(CostTable.of((1, 2, 3), (10.0, 20.0, 30.0)), 8, 1.0)
    hopeless = tree_of([1e-6, 1e-6])
    assert nodes_of(budget, hopeless) == 0
    assert nodes_of(budget, hopeless, forced=True) == 1
    assert nodes_of(budget, Tree.empty(), forced=True) == 0


def test_calibration_follows_what_is_accepted() -> None:
    budget = budget_of(TABLE, 59, 6.0)
    for _ in range(400):
        observe(budget, [outcome_of(Gain(), tree_of([0.5, 0.5]), 0)])
    # 0.99 geometric sums: the expectation tends to 1 / (1 - 0.99), the accepted tokens to nothing.
    assert budget.calibration < 0.02


def test_a_session_without_gain_pauses_and_tries_again() -> None:
    budget = budget_of(TABLE, 59, 6.0)
    gain = Gain()
    for _ in range(TRIAL_ROUNDS):
        assert budget.pays(gain, 1)
        run_round(budget, gain, accepted=0)
    # 1 token in 44 + 6 ms against 1 in 40.
    chances = [budget.pays(gain, 1) for _ in range(FIRST_PAUSE + 1)]
    assert chances == [False] * FIRST_PAUSE + [True]
    for _ in range(RETRY_ROUNDS):
        run_round(budget, gain, accepted=0)
    chances = [budget.pays(gain, 1) for _ in range(2 * FIRST_PAUSE + 1)]
    assert chances == [False] * 2 * FIRST_PAUSE + [True]
    for _ in range(RETRY_ROUNDS):
        run_round(budget, gain, accepted=2)
    # 3 tokens in 50 ms.
    assert all(budget.pays(gain, 1) for _ in range(20))


def test_a_session_with_gain_goes_on() -> None:
    budget = budget_of(TABLE, 59, 6.0)
    gain = Gain()
    for _ in range(50):
        assert budget.pays(gain, 1)
        run_round(budget, gain, accepted=1)


def test_overhead_counts() -> None:
    budget = budget_of(TABLE, 59, 6.0)
    gain = Gain()
    for _ in range(TRIAL_ROUNDS):
        run_round(budget, gain, accepted=1)
    assert budget.pays(gain, 1)
    for _ in range(100):
        budget.observe_overhead(60.0)
    # 2 tokens in 44 + 60 ms against 1 in 40.
    assert not budget.pays(gain, 1)


def test_searches_are_asked_for_what_trees_get() -> None:
    budget = budget_of(TABLE, 59, 6.0)
    assert budget.search_nodes == 59
    wide, narrow = tree_of([0.9] * 59), tree_of([0.5, 0.4] + [1e-4] * 57)
    assert nodes_of(budget, narrow) == 2
    for _ in range(60):
        budget.admit([narrow] * 2, [False] * 2, Shape(2, 0.0))
    assert budget.search_nodes == 8
    # Trees that are verified to the last node are asked for larger ones until they have what pays.
    asked = []
    while (nodes := budget.search_nodes) < 59:
        asked.append(nodes)
        assert nodes_of(budget, tree_of([0.9] * nodes)) == nodes
    assert asked == [8, 16, 24, 40]
    assert nodes_of(budget, wide) == 59


def test_fixed_budget_cuts_and_always_drafts() -> None:
    budget = FixedBudget(3)
    assert nodes_of(budget, tree_of([0.9] * 10)) == 3
    assert nodes_of(budget, tree_of([0.9])) == 1
    assert budget.search_nodes == 3
    assert budget.pays(Gain(rounds=1000, trial=0), 1)
