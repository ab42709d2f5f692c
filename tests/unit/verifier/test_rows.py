"""Rows of logits: every bit of bfloat16 as float32, and summaries against numpy and float64, compiled or not."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch

from dartspec.services.verifier import looks
from dartspec.services.verifier.looks import look, row_of
from dartspec.services.verifier.rows import Row, Summary, floats, stored
from dartspec.services.verifier.serial import SERIAL_ELEMENTS, exp_in_place


@pytest.fixture(params=["compiled", "numpy"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways to sum a row up."""
    if request.param == "numpy":
        monkeypatch.setattr(looks, "_loop", lambda short: None)
    else:
        assert looks._loop(True) is not None, "numba is part of the verifier's packages"


def rows_of(logits: torch.Tensor, chosen: Sequence[int]) -> list[Row]:
    return look(stored(logits), chosen, [None] * len(chosen))


def test_every_bfloat16_is_the_float32_that_torch_makes_of_it() -> None:
    every = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int16).view(torch.bfloat16)
    got, expected = floats(stored(every)), every.float().numpy()
    assert got.dtype == np.float32
    assert (got.view(np.uint32) == expected.view(np.uint32)).all()  # infinities, NaNs and both zeros, too
    assert (floats(stored(every.view(4, -1))[2]).view(np.uint32) == expected.reshape(4, -1)[2].view(np.uint32)).all()


def test_float32_is_not_copied() -> None:
    logits = torch.zeros(2, 5)
    floats(stored(logits)[1])[3] = 7.0
    assert logits[1, 3] == 7.0


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("vocab", [1, 2, 7, 511, 512, 513, 5000])
def test_a_summary_is_what_a_sort_and_a_sum_in_float64_give(vocab: int, dtype: torch.dtype) -> None:
    torch.manual_seed(vocab)
    for scale in (0.01, 3.0, 60.0):
        logits = (scale * torch.randn(6, vocab)).to(dtype)
        logits[1] = logits[1].round()  # ties
        logits[2, torch.rand(vocab) < 0.3] = -math.inf
        logits[2, vocab // 2] = 0.5
        logits[3] = -4.0  # nothing but ties
        logits[4] += 200.0
        logits[5] -= 200.0
        for row, found in enumerate(rows_of(logits, range(6))):
            got = found.summary
            values = logits[row].double().tolist()
            order = sorted(range(vocab), key=lambda token: (-values[token], token))
            assert got.best == order[0]
            assert got.largest == values[order[0]]
            assert got.runner_up == (values[order[1]] if vocab > 1 else -math.inf)
            expected = float(torch.logsumexp(logits[row].double(), 0))
            assert got.log_normalizer == pytest.approx(expected, rel=1e-6, abs=1e-5)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("place", [0, 3, 511, 599])
def test_a_nan_is_the_largest_and_a_row_of_nothing_has_none(place: int, dtype: torch.dtype) -> None:
    logits = torch.randn(3, 600).to(dtype)
    logits[0, place] = math.nan
    logits[1, place] = -math.nan
    logits[2] = -math.inf
    first, second, nothing = rows_of(logits, range(3))
    assert math.isnan(first.summary.largest)
    assert math.isnan(second.summary.largest)
    assert nothing.summary.largest == -math.inf


def test_rows_are_found_by_number() -> None:
    logits = torch.randn(5, 700).bfloat16()
    for number, row in zip([3, 1], rows_of(logits, [3, 1]), strict=True):
        assert row.summary.best == int(logits[number].float().argmax())
        assert (row.values == logits[number].float().numpy()).all()
        assert row.logit(17) == float(logits[number, 17])
        assert row.logit(row.summary.best) == float(logits[number].max())
    assert rows_of(logits[:0], []) == []


def test_a_row_of_floats_is_summed_up() -> None:
    row = row_of(np.array([1.0, 4.0, 3.5], np.float32))
    assert row.summary[:3] == Summary(1, 4.0, 3.5, 0.0)[:3]
    assert row.summary.log_normalizer == pytest.approx(math.log(sum(map(math.exp, (1.0, 4.0, 3.5)))), abs=1e-6)


@pytest.mark.parametrize("length", [1, SERIAL_ELEMENTS, 2 * SERIAL_ELEMENTS + 3])
def test_exp_of_all_pieces(length: int) -> None:
    values = np.linspace(-700.0, 3.0, length)  # below, numbers have fewer digits
    expected = np.exp(values)
    exp_in_place(values)
    np.testing.assert_allclose(values, expected, rtol=1e-14)
