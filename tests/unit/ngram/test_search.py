"""Both searches equal their naive twins."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import ngram_index
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from . import naive
from .support import build, paths, search, unpack

VOCAB = 12
DOCUMENTS = [[(i * i + 3 * j + i * j // 2) % VOCAB for i in range(14)] for j in range(9)]
TOLERANCE = 1e-4

tokens = st.integers(0, VOCAB + 1)  # some are not in the vocabulary
logprobs = st.one_of(st.floats(-12, 0, width=32), st.just(-math.inf), st.just(0.0))
offset = st.lists(st.tuples(tokens, logprobs), min_size=1, max_size=6).map(
    lambda pairs: ([token for token, _ in pairs], [value for _, value in pairs])
)
offsets = st.lists(offset, min_size=1, max_size=4)
contexts = st.lists(st.integers(0, VOCAB + 1), max_size=6)
stops = st.lists(tokens, max_size=3)
budgets = st.integers(0, 30)
rules = st.sampled_from(["reference", "stupid_backoff", "witten_bell", "divided"])
factors = st.floats(0.0625, 1, width=32)
weights = st.floats(0, 2, width=32)


def some_transition(before: int, token: int) -> float:
    """A score in [-3, 3] that depends on both."""
    return float(np.float32(3.0 * math.sin(7.0 * before + 3.0 * token + 1.0)))


@pytest.fixture(scope="module", params=[2, 3, 4, 5])
def pair(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[ngram_index.Index, naive.NaiveIndex]:
    order = request.param
    path: Path = tmp_path_factory.mktemp("search") / "index.ngx"
    return build(path, DOCUMENTS, order, VOCAB), naive.NaiveIndex.build(DOCUMENTS, order, VOCAB)


def assert_best(found: list[tuple[int, ...]], twin: naive.Search, tolerance: float) -> None:
    """Equal as sets of paths, or differing in paths whose scores are as good as equal."""
    assert len(found) == len(twin.chosen)
    ours = sorted(twin.scores[path] for path in set(found) - set(twin.chosen))
    theirs = sorted(twin.scores[path] for path in set(twin.chosen) - set(found))
    assert ours == pytest.approx(theirs, rel=tolerance, abs=tolerance)


@settings(max_examples=150, deadline=None)
@given(contexts, offsets, stops, budgets, st.integers(1, 5), st.booleans(), rules, factors)
def test_reference(
    pair: Any,
    context: list[int],
    offsets: Any,
    stops: list[int],
    budget: int,
    width: int,
    skip: bool,
    rule: str,
    factor: float,
) -> None:
    params: dict[str, Any] = {
        "stop_token_ids": stops,
        "node_budget": budget,
        "beam_width": width,
        "skip_ngram_at_first_level": skip,
        "score_rule": rule,
        "backoff_factor": factor,
    }
    twin = naive.reference(pair[1], context, offsets, **params)
    assume(twin.beam_gap > TOLERANCE)  # else rounding may decide which of two paths stays in the beam
    assert_best(paths(search(pair[0], context, offsets, mode="reference", **params)), twin, TOLERANCE)


@settings(max_examples=150, deadline=None)
@given(contexts, offsets, stops, budgets, st.floats(0, 2, width=32), rules, factors, st.none() | weights)
def test_survival(
    pair: Any,
    context: list[int],
    offsets: Any,
    stops: list[int],
    budget: int,
    weight: float,
    rule: str,
    factor: float,
    transition_weight: float | None,
) -> None:
    transition = None if transition_weight is None else some_transition
    by = naive.Estimate(weight, rule, factor, transition_weight or 0.0, transition)
    twin = naive.survival(pair[1], context, offsets, stop_token_ids=stops, node_budget=budget, by=by)
    params: dict[str, Any] = {"ngram_weight": weight, "score_rule": rule, "backoff_factor": factor}
    params |= {} if transition is None else {"transition": transition, "transition_weight": transition_weight}
    tree = search(pair[0], context, offsets, stop_token_ids=stops, node_budget=budget, **params)
    found = paths(tree)
    expected = {path: naive.survival_of(pair[1], context, offsets, path, by) for path in found}
    assert_best(found, naive.Search(twin.chosen, {**twin.scores, **expected}), TOLERANCE)
    for path, value in zip(found, unpack(tree)[2], strict=True):
        assert value == pytest.approx(expected[path], rel=1e-3, abs=1e-6)


@settings(max_examples=40, deadline=None)
@given(contexts, offsets)
def test_each_mode_has_its_own_rule(pair: Any, context: list[int], offsets: Any) -> None:
    for mode, rule in (("survival", "divided"), ("reference", "reference")):
        trees = [search(pair[0], context, offsets, mode=mode, score_rule=name) for name in ("auto", rule)]
        assert unpack(trees[0]) == unpack(trees[1])


@settings(max_examples=20, deadline=None)
@given(st.lists(st.tuples(contexts, offsets), max_size=9), st.sampled_from(["survival", "reference"]))
def test_a_batch_equals_single_searches(pair: Any, queries: Any, mode: str) -> None:
    single = [unpack(search(pair[0], context, offsets, mode=mode)) for context, offsets in queries]
    batch = [
        (
            context,
            [len(ids) for ids, _ in offsets],
            np.array([id_ for ids, _ in offsets for id_ in ids], np.int32),
            np.array([value for _, values in offsets for value in values], np.float32),
            None,
        )
        for context, offsets in queries
    ]
    for threads in (1, 2, 4):
        trees = pair[0].search_batch(batch, threads=threads, mode=mode)
        assert [unpack(tree) for tree in trees] == single


@settings(max_examples=40, deadline=None)
@given(contexts, offsets)
def test_reference_trees_carry_the_survival_of_the_other_mode(pair: Any, context: list[int], offsets: Any) -> None:
    tree = search(pair[0], context, offsets, mode="reference", node_budget=10)
    for path, value in zip(paths(tree), unpack(tree)[2], strict=True):
        assert value == pytest.approx(naive.survival_of(pair[1], context, offsets, path), rel=1e-3, abs=1e-6)


def test_feature_bins_hold_depth_matched_length_and_draft_probability(pair: Any) -> None:
    index, twin = pair
    context = DOCUMENTS[0][:6]
    probabilities = [0.6, 0.3, 0.05]
    offsets = [([DOCUMENTS[0][6 + i], 11, 1], np.log(probabilities).tolist()) for i in range(3)]
    tree = search(index, context, offsets, node_budget=39)
    found = paths(tree)
    assert len(found) > 12
    for path, feature in zip(found, unpack(tree)[3], strict=True):
        *above, token = path
        p = max(p for id_, p in zip(offsets[len(above)][0], probabilities, strict=True) if id_ == token)
        matched = twin.score([*context, *above], token)[1]
        assert feature == len(above) << 6 | matched << 3 | math.floor(-math.log2(p))


def test_without_counts_every_node_has_the_probability_of_its_path(pair: Any) -> None:
    offsets = [([4, 7], np.log([0.5, 0.2]).tolist()), ([7, 2], np.log([0.4, 0.3]).tolist())]
    scores = {(4, 7): math.log(2.0), (4, 2): math.log(0.5), (7, 7): 0.0, (7, 2): math.log(4.0)}
    tree = search(pair[0], [1], offsets, lambda u, v: scores[u, v], ngram_weight=0.0)
    # After 4 the candidates have 0.8 and 0.15 beside 0.3 for all other tokens, after 7 they have 0.4 and 1.2.
    expected = {
        (4,): 0.5,
        (7,): 0.2,
        (4, 7): 0.5 * 0.8 / 1.25,
        (4, 2): 0.5 * 0.15 / 1.25,
        (7, 7): 0.2 * 0.4 / 1.9,
        (7, 2): 0.2 * 1.2 / 1.9,
    }
    assert dict(zip(paths(tree), unpack(tree)[2], strict=True)) == pytest.approx(expected, rel=1e-5)
    # Bins say in which halving the probability after the parent is: 0.64, 0.12, 0.21, 0.63.
    bins = dict(zip(paths(tree), (feature & 7 for feature in unpack(tree)[3]), strict=True))
    assert bins == {(4,): 1, (7,): 2, (4, 7): 0, (4, 2): 3, (7, 7): 2, (7, 2): 0}


def test_counts_favour_what_was_seen(tmp_path: Path) -> None:
    index = build(tmp_path / "index.ngx", [[1, 2, 3]] * 9 + [[4], [5], [6]], 3, 10)
    offsets = [([2, 4], [math.log(0.2), math.log(0.2)]), ([3, 5], [math.log(0.2), math.log(0.2)])]
    found, (_, _, values, _) = paths(tree := search(index, [0, 1], offsets, ngram_weight=0.7)), unpack(tree)
    survival = dict(zip(found, values, strict=True))
    assert survival[(2,)] > 0.35 > 0.05 > survival[(4,)]
    assert survival[(2,)] + survival[(4,)] == pytest.approx(0.4)
    assert survival[(2, 3)] / survival[(2,)] > survival[(4, 3)] / survival[(4,)]


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"logprobs": np.array([-1, np.nan], np.float32)}, "proposals.logprobs"),
        ({"logprobs": np.array([-1, 0.7], np.float32)}, "proposals.logprobs"),
        ({"logprobs": np.array([-1], np.float32)}, "proposals.logprobs"),
        ({"token_ids": np.array([3, -4], np.int32)}, "proposals.token_ids"),
        ({"widths": []}, "proposals.widths"),
        ({"widths": [2, 0]}, "proposals.widths"),
        ({"mode": "fast"}, "params.mode"),
        ({"node_budget": 1025}, "params.node_budget"),
        ({"beam_width": 0}, "params.beam_width"),
        ({"ngram_weight": float("nan")}, "params.ngram_weight"),
        ({"score_rule": "best"}, "params.score_rule"),
        ({"backoff_factor": 0.0}, "params.backoff_factor"),
        ({"backoff_factor": float("nan")}, "params.backoff_factor"),
        ({"transition_weight": 2.5}, "params.transition_weight"),
        ({"transitions": np.array([0.5], np.float32)}, "proposals.transitions"),
    ],
)
def test_bad_input_is_named(pair: Any, change: dict[str, Any], field: str) -> None:
    arguments: dict[str, Any] = {
        "context": [1],
        "widths": [2],
        "token_ids": np.array([3, 4], np.int32),
        "logprobs": np.array([-1, -2], np.float32),
    }
    assert len(pair[0].search(**arguments)) == 2
    with pytest.raises(ngram_index.NgramError, match=f"^{field}: ") as error:
        pair[0].search(**{**arguments, **change})
    assert (error.value.code, error.value.field) == ("invalid_argument", field)


def test_bad_batches_are_named(pair: Any) -> None:
    good = ([1], [2], np.array([3, 4], np.int32), np.array([-1, -2], np.float32), None)
    bad = (*good[:3], np.array([-1, np.nan], np.float32), None)
    for threads in (1, 2):
        with pytest.raises(ngram_index.NgramError, match="query 1: must be natural log-probabilities") as error:
            pair[0].search_batch([good, bad, bad], threads=threads)
        assert error.value.field == "proposals.logprobs"
    with pytest.raises(ngram_index.NgramError, match=r"^threads: must be 1 to 1024, got 0"):
        pair[0].search_batch([good], threads=0)
    with pytest.raises(TypeError, match='no parameter "beam"'):
        pair[0].search(*good, beam=3)
