"""Rows of logits: every bit of bfloat16 as float32, and torch's exp piece by piece."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dartspec.services.verifier.rows import SERIAL_ELEMENTS, exp_in_place, host_row


def test_every_bfloat16_is_the_float32_that_torch_makes_of_it() -> None:
    every = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int16).view(torch.bfloat16)
    got, expected = host_row(every), every.float().numpy()
    assert got.dtype == np.float32
    assert (got.view(np.uint32) == expected.view(np.uint32)).all()  # infinities, NaNs and both zeros, too
    assert (host_row(every.view(4, -1)[2]).view(np.uint32) == expected.reshape(4, -1)[2].view(np.uint32)).all()


def test_float32_is_not_copied() -> None:
    logits = torch.zeros(2, 5)
    host_row(logits[1])[3] = 7.0
    assert logits[1, 3] == 7.0


@pytest.mark.parametrize("length", [1, SERIAL_ELEMENTS, 2 * SERIAL_ELEMENTS + 3])
def test_exp_of_all_pieces(length: int) -> None:
    values = np.linspace(-700.0, 3.0, length)  # below, numbers have fewer digits
    expected = np.exp(values)
    exp_in_place(values)
    np.testing.assert_allclose(values, expected, rtol=1e-14)
