"""From logits to a token: against a naive twin, at the edges, and never a token of probability zero."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dartspec.services.common.errors import InternalError
from dartspec.services.common.types import Sampling
from dartspec.services.verifier.candidates import largest
from dartspec.services.verifier.edits import History
from dartspec.services.verifier.looks import row_of
from dartspec.services.verifier.noise import gumbel
from dartspec.services.verifier.sampling import choose, choose_with_margin, processed

from .naive_sampling import naive_processed

NONE: frozenset[int] = frozenset()


def float32(values: Sequence[float]) -> np.ndarray:
    return np.array(values, dtype=np.float32)


def assert_like_naive(
    logits: Sequence[float], prompt: Sequence[int], generated: Sequence[int], sampling: Sampling, enders: frozenset[int]
) -> None:
    row = float32(logits)
    expected = naive_processed(row.tolist(), prompt, generated, sampling, enders)
    history = History.of(prompt, generated)
    if not expected:
        with pytest.raises(InternalError, match="no token of the vocabulary is left"):
            processed(row, history, sampling, enders)
        return
    got = processed(row, history, sampling, enders)
    assert got.ids.tolist() == sorted(expected)
    # Only differences of scores matter.
    shift = got.scores.max() - max(expected.values())
    for token, score in zip(got.ids.tolist(), got.scores.tolist(), strict=True):
        assert score - shift == pytest.approx(expected[token], abs=1e-6)
    if sampling.temperature == 0:
        best = min(expected, key=lambda token: (-expected[token], token))
        assert choose(row, 3, history, sampling, 1, enders) == best
        return
    ids = np.array(sorted(expected))
    totals = np.array([expected[token] for token in ids.tolist()]) + gumbel(ids, 3, 1)
    assert choose(row, 3, history, sampling, 1, enders) == ids[totals.argmax()]


@st.composite
def cases(draw: st.DrawFn) -> tuple[Any, ...]:
    vocab = draw(st.integers(1, 12))
    token = st.integers(0, vocab - 1)
    # Few values, many of them equal, so that ties are the rule; all are exact in binary.
    logits = draw(
        st.lists(st.sampled_from([-4.0, -1.5, -1.0, 0.0, 0.5, 1.0, 2.0, 5.0]), min_size=vocab, max_size=vocab)
    )
    banned = draw(st.lists(token, max_size=3))
    allowed = draw(st.one_of(st.just([]), st.lists(token, min_size=1, max_size=6)))
    sampling = Sampling(
        temperature=draw(st.sampled_from([0.0, 0.3, 0.5, 1.0, 2.0])),
        max_tokens=100,
        top_k=draw(st.sampled_from([0, 0, 1, 2, 3, 7, 50])),
        top_p=draw(st.sampled_from([1.0, 1.0, 1.0, 0.999, 0.8123, 0.4567, 0.0123])),
        min_p=draw(st.sampled_from([0.0, 0.0, 0.0, 0.0111, 0.1234, 0.777, 1.0])),
        repetition_penalty=draw(st.sampled_from([1.0, 0.5, 2.0])),
        presence_penalty=draw(st.sampled_from([0.0, -0.5, 1.25])),
        frequency_penalty=draw(st.sampled_from([0.0, 0.25, -2.0])),
        logit_bias=draw(st.dictionaries(token, st.sampled_from([-2.0, 0.5, 100.0, -100.0]), max_size=3)),
        allowed_token_ids=tuple(allowed),
        banned_token_ids=tuple(banned),
        min_tokens=draw(st.integers(0, 4)),
    )
    return (
        logits,
        draw(st.lists(token, max_size=5)),
        draw(st.lists(token, max_size=6)),
        sampling,
        draw(st.frozensets(token, max_size=2)),
    )


@settings(max_examples=600, deadline=None, derandomize=True)
@given(cases())
def test_processed_equals_the_naive_twin(case: tuple[Any, ...]) -> None:
    assert_like_naive(*case)


@pytest.mark.parametrize("top_p", [0.3, 0.9, 0.999999, 1 - 1e-12])
@pytest.mark.parametrize("spread", [0.0, 0.01, 5.0])
def test_top_p_over_a_large_vocabulary_equals_the_naive_twin(top_p: float, spread: float) -> None:
    # Flat rows need more than the few likely tokens that are sorted first; spread 0 is one tie of all.
    logits = np.random.default_rng(0).normal(scale=spread, size=9000).astype(np.float32)
    expected = naive_processed(logits.tolist(), [], [], Sampling(1.0, 9, top_p=top_p), NONE)
    got = processed(logits, History(), Sampling(1.0, 9, top_p=top_p), NONE)
    if spread == 0.0:
        assert got.ids.tolist() == list(range(len(got.ids)))
        assert abs(len(got.ids) - math.ceil(top_p * 9000)) <= 1
        return
    # Sums are rounded in another order, so the border may move by a token that weighs nothing.
    assert len(set(got.ids.tolist()) ^ set(expected)) <= (1 if top_p > 0.99999 else 0)


def test_top_k_keeps_exactly_k_and_the_smaller_ids_of_a_tie() -> None:
    got = processed(float32([1, 3, 1, 1, 3, 1, 0]), History(), Sampling(1.0, 9, top_k=4), NONE)
    assert got.ids.tolist() == [0, 1, 2, 4]


def test_top_k_does_not_bring_back_what_is_not_allowed() -> None:
    sampling = Sampling(1.0, 9, top_k=4, allowed_token_ids=(1, 3, 5), banned_token_ids=(3,))
    assert processed(float32([1, 3, 1, 1, 3, 1, 0]), History(), sampling, NONE).ids.tolist() == [1, 5]


def test_top_p_is_the_smallest_set_that_reaches_it() -> None:
    logits = float32(np.log([0.5, 0.25, 0.125, 0.125]))
    for top_p, kept in ((0.1, [0]), (0.49, [0]), (0.51, [0, 1]), (0.76, [0, 1, 2]), (0.88, [0, 1, 2, 3])):
        assert processed(logits, History(), Sampling(1.0, 9, top_p=top_p), NONE).ids.tolist() == kept


def test_penalties_count_what_they_say() -> None:
    logits = float32([2.0, -2.0, 2.0, -2.0, 2.0])
    history = History.of([0, 1], [2, 3, 2])
    sampling = Sampling(1.0, 9, repetition_penalty=2.0, presence_penalty=0.5, frequency_penalty=0.25)
    got = processed(logits, history, sampling, NONE).scores
    # prompt tokens: repetition only; answer tokens: all three, the frequency by count; the last one was never seen.
    np.testing.assert_allclose(got - got[4], np.array([1, -4, 1 - 0.5 - 0.5, -4 - 0.5 - 0.25, 2]) - 2)


def test_min_tokens_counts_the_answer_only() -> None:
    logits = float32([0.0, 9.0, 1.0])
    sampling = Sampling(0.0, 9, min_tokens=2)
    enders = frozenset({1})
    assert choose(logits, 0, History.of([0] * 5), sampling, 0, enders) == 2
    assert choose(logits, 0, History.of([0] * 5, [2]), sampling, 0, enders) == 2
    assert choose(logits, 0, History.of([0] * 5, [2, 2]), sampling, 0, enders) == 1


REMOVERS = {
    "banned": Sampling(1.0, 9, banned_token_ids=(0, 2)),
    "allowed": Sampling(1.0, 9, allowed_token_ids=(1, 3)),
    "top_k": Sampling(1.0, 9, top_k=2),
    "top_p": Sampling(1.0, 9, top_p=0.9),
    "min_p": Sampling(1.0, 9, min_p=0.5),
    "hot": Sampling(100.0, 9, top_k=2),
}


def rig_the_coin(monkeypatch: pytest.MonkeyPatch, bits_of: Callable[[np.ndarray], np.ndarray]) -> None:
    def philox(counters: np.ndarray, position: int, seed: int) -> tuple[np.ndarray, ...]:
        return tuple(bits_of(4 * counters.astype(np.int64) + lane).astype(np.uint64) for lane in range(4))

    def philox_once(counter: int, position: int, seed: int) -> tuple[int, ...]:
        return tuple(int(word[0]) for word in philox(np.array([counter]), position, seed))

    # Compiled code makes its own bits.
    monkeypatch.setattr("dartspec.services.verifier.looks._loop", lambda short: None)
    monkeypatch.setattr("dartspec.services.verifier.draw_kernel.survivors", None)
    monkeypatch.setattr("dartspec.services.verifier.noise.philox", philox)
    monkeypatch.setattr("dartspec.services.verifier.noise.philox_once", philox_once)


@pytest.mark.parametrize("name", REMOVERS)
def test_a_token_of_probability_zero_is_never_chosen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # The removed tokens 0 and 2 toss the best coin there is, the others the worst.
    rig_the_coin(monkeypatch, lambda tokens: np.where((tokens == 0) | (tokens == 2), 2**32 - 1, 0))
    assert choose(float32([-3.0, 2.0, -3.0, 2.0]), 1, History(), Sampling(100.0, 9), 0, NONE) == 0  # the rig works
    assert choose(float32([-3.0, 2.0, -3.0, 2.0]), 1, History(), REMOVERS[name], 0, NONE) == 1


def test_a_logit_of_minus_infinity_is_never_chosen() -> None:
    logits = float32([-math.inf, 0.0, -math.inf, -math.inf])
    sampling = Sampling(1.0, 9, logit_bias={0: 50.0})
    assert {choose(logits, 1, History(), sampling, seed, NONE) for seed in range(200)} == {1}
    assert choose(logits, 1, History(), Sampling(0.0, 9, logit_bias={0: 50.0}), 0, NONE) == 1


@pytest.mark.parametrize(("lead", "winner"), [(7.0, 1), (13.0, 1), (20.0, 1), (25.9, 1), (26.1, 0)])
def test_the_best_coin_overcomes_any_lead_within_its_reach(
    lead: float, winner: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The likeliest token tosses the worst coin, -3.130, token 1 the best, 22.874: 26.004 apart.
    rig_the_coin(monkeypatch, lambda tokens: np.where(tokens == 1, 2**32 - 1, 0))
    assert choose(float32([lead, 0.0, lead - 0.5]), 1, History(), Sampling(1.0, 9), 0, NONE) == winner


def test_ties_go_to_the_smallest_id(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = float32([1.0, 4.0, 4.0, 0.0, 4.0])
    assert choose(logits, 0, History(), Sampling(0.0, 9), 0, NONE) == 1
    assert choose(logits, 0, History(), Sampling(0.0, 9, logit_bias={1: -1.0}), 0, NONE) == 2
    rig_the_coin(monkeypatch, lambda tokens: np.full(len(tokens), 12345))
    assert choose(logits, 0, History(), Sampling(1.0, 9), 0, NONE) == 1


@pytest.mark.parametrize("vocab", [1, 5, 1024, 1500, 50_000])
def test_the_largest_are_the_first_of_a_stable_sort(vocab: int) -> None:
    rng = np.random.default_rng(vocab)
    for case in range(40):
        # Many ties, a few tokens that cannot be chosen, now and then more of those than there are others.
        scores = rng.integers(-3, 4 + 100 * (case % 2), size=vocab).astype(np.float32)
        scores[rng.random(vocab) < rng.choice([0.0, 0.1, 0.999])] = -np.inf
        count = int(rng.choice([1, 2, 20, 1024, 1025, vocab]))
        expected = np.sort(np.argsort(-scores, kind="stable")[:count])
        assert np.array_equal(largest(scores, count), expected), (case, count)


def test_the_tosses_follow_the_law() -> None:
    logits = float32([0.0, 1.0, 2.0, -1.0])
    sampling = Sampling(0.7, 9)
    draws = 10_000
    counts = np.bincount(
        [choose(logits, position, History(), sampling, 12345, NONE) for position in range(draws)], minlength=4
    )
    law = np.exp(logits / 0.7) / np.exp(logits / 0.7).sum()
    statistic = float(((counts - draws * law) ** 2 / (draws * law)).sum())
    assert statistic < 21.1  # chi-square with 3 degrees of freedom passes this once in 10,000


def test_the_margin_is_the_distance_to_the_runner_up() -> None:
    logits = float32([1.0, 4.0, 3.5, -math.inf])
    cases = [
        (Sampling(0.0, 9), 0.5),
        (Sampling(0.0, 9, logit_bias={2: 3.0}), 2.5),
        (Sampling(1.0, 9, top_k=1), math.inf),
    ]
    for sampling, expected in cases:
        assert choose_with_margin(row_of(logits), 0, History(), sampling, 0, NONE)[1] == expected


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("top_k", [0, 1])
def test_nan_logits_are_an_error(temperature: float, top_k: int) -> None:
    with pytest.raises(InternalError, match="NaN"):
        choose(float32([9.0, math.nan, 1.0]), 0, History(), Sampling(temperature, 9, top_k=top_k), 0, NONE)


@pytest.mark.parametrize(
    "sampling", [Sampling(0.0, 9), Sampling(1.0, 9), Sampling(1.0, 9, top_k=1, top_p=0.01, min_p=1.0)]
)
def test_a_vocabulary_of_one(sampling: Sampling) -> None:
    assert choose(float32([-7.0]), 5, History.of([0], [0]), sampling, 3, NONE) == 0


@pytest.mark.parametrize("temperature", [1e-6, 1e-300, 5e-324])
@pytest.mark.parametrize("filters", [{}, {"top_p": 0.9}, {"min_p": 0.1}, {"top_k": 2}])
def test_the_smallest_temperatures_are_the_argmax(temperature: float, filters: dict[str, Any]) -> None:
    logits = float32([3.0, -1.0, 40.0, 39.0])
    assert {choose(logits, 1, History(), Sampling(temperature, 9, **filters), seed, NONE) for seed in range(20)} == {2}
