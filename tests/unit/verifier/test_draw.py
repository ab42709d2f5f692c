"""The draw skips what cannot win: it must find the argmax of all, and its margin, all the same."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dartspec.services.verifier import draw_kernel
from dartspec.services.verifier.candidates import Candidates
from dartspec.services.verifier.draw import MARGIN_LIMIT, draw, draw_of_row
from dartspec.services.verifier.noise import gumbel


def assert_margin(margin: float, totals: np.ndarray) -> None:
    """Exact below its limit, and never small when the truth is large."""
    if len(totals) == 1:
        assert margin == math.inf
        return
    second, first = np.sort(totals)[-2:]
    if min(margin, first - second) < MARGIN_LIMIT:
        assert margin == pytest.approx(first - second, abs=1e-12)


@pytest.fixture(params=["compiled", "numpy"], autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways to go through a row."""
    if request.param == "numpy":
        monkeypatch.setattr(draw_kernel, "survivors", None)
        monkeypatch.setattr(draw_kernel, "noise_bits", None)
    else:
        assert draw_kernel.survivors is not None, "numba is part of the verifier's packages"


@pytest.mark.parametrize("vocab", [1, 2, 3, 7, 64, 1000])
def test_the_pruned_argmax_is_the_full_argmax(vocab: int) -> None:
    rng = np.random.default_rng(vocab)
    for case in range(300):
        scores = rng.normal(scale=rng.choice([0.0, 0.1, 1.0, 5.0, 30.0]), size=vocab)
        ids = np.sort(rng.choice(4 * vocab, vocab, replace=False))
        seed, position = int(rng.integers(2**63)), int(rng.integers(1 << 20))
        totals = scores + gumbel(ids, position, seed)
        got, margin = draw(Candidates(ids, scores), position, seed)
        assert got == int(ids[np.argmax(totals)]), case
        assert_margin(margin, totals)
        # A row with holes, in both precisions and undivided.
        for dtype, temperature in ((np.float64, 1.0), (np.float32, 1.0), (np.float32, 0.3), (np.float32, 20.0)):
            row = np.full(4 * vocab, -np.inf, dtype)
            row[ids] = scores
            totals = row.astype(np.float64) / temperature + gumbel(np.arange(4 * vocab), position, seed)
            got, margin = draw_of_row(row, int(np.argmax(row)), temperature, position, seed)
            assert got == int(np.argmax(totals)), (case, dtype, temperature)
            assert_margin(margin, totals)


@pytest.mark.parametrize("scale", [0.0, 1.0, 10.0])
def test_the_pruned_argmax_is_the_full_argmax_of_a_large_vocabulary(scale: float) -> None:
    rng = np.random.default_rng(1)
    ids = np.arange(50_001)
    for position in range(25):
        scores = rng.normal(scale=scale, size=len(ids))
        totals = scores + gumbel(ids, position, 9)
        for got, margin in (
            draw(Candidates(ids, scores), position, 9),
            draw_of_row(scores, int(np.argmax(scores)), 1.0, position, 9),
        ):
            assert got == int(np.argmax(totals))
            assert_margin(margin, totals)
