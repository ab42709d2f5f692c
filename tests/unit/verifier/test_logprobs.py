"""Log-probabilities against sums in float64, and the likeliest tokens against a full sort."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dartspec.services.verifier import logprobs
from dartspec.services.verifier.logprobs import log_normalizer, top_tokens


def log_probability(logits: np.ndarray, token: int) -> float:
    return logprobs.log_probability(float(logits[token]), log_normalizer(logits))


def test_log_probabilities_are_those_of_the_raw_logits() -> None:
    logits = np.array([1.0, 2.0, -3.0, 500.0], np.float32)
    exact = [value - (500.0 + math.log(1 + math.exp(-499) + math.exp(-498))) for value in logits.tolist()]
    assert [log_probability(logits, token) for token in range(4)] == pytest.approx(exact, abs=1e-6)
    flat = np.zeros(50_000, np.float32)
    assert log_probability(flat, 7) == pytest.approx(-math.log(50_000), abs=1e-9)
    assert log_probability(np.array([0.0, -math.inf], np.float32), 1) == -math.inf
    assert -1e-7 < log_probability(np.array([-7.0], np.float32), 0) <= 0.0


@pytest.mark.parametrize("scale", [0.1, 3.0, 40.0])
@pytest.mark.parametrize("mean", [0.0, -60.0, -200.0, 60.0, 200.0])
def test_log_probabilities_equal_a_sum_in_float64(scale: float, mean: float) -> None:
    logits = np.random.default_rng(4).normal(mean, scale, size=49_152).astype(np.float32)
    shifted = logits.astype(np.float64) - mean
    exact = shifted - math.log(math.fsum(np.exp(shifted).tolist()))
    for token in (int(np.argmax(logits)), int(np.argmin(logits)), 0, 49_151):
        assert log_probability(logits, token) == pytest.approx(exact[token], abs=1e-4)


@pytest.mark.parametrize("vocab", [1, 3, 61, 5000])
@pytest.mark.parametrize("count", [1, 5, 20])
def test_top_tokens_are_the_first_of_a_sort_by_value_then_id(vocab: int, count: int) -> None:
    rng = np.random.default_rng(vocab + count)
    for ties in (True, False):
        logits = rng.normal(scale=3.0, size=vocab).astype(np.float32)
        if ties:
            logits = np.round(logits)
        logits[rng.random(vocab) < 0.2] = -math.inf
        logits[0] = 0.0
        values = logits.tolist()
        normalizer = math.log(math.fsum(math.exp(value) for value in values))
        expected = sorted(range(vocab), key=lambda token: (-values[token], token))[:count]
        got = top_tokens(logits, count, log_normalizer(logits))
        assert [token for token, _ in got] == expected
        assert [value for _, value in got] == pytest.approx([values[t] - normalizer for t in expected], abs=1e-5)
        assert max(value for _, value in got) <= 0.0
