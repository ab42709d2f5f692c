"""Rows of logits on the host: as they are stored, as float32, and what every choice needs to know of them.

Where numba is, rows are summed up by compiled code (`summary_loop.py`), many of them in several threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from dartspec.services.common.types import Float32
from dartspec.services.verifier.logprobs import log_normalizer
from dartspec.services.verifier.optional_loop import loop_or_none

# float32, or the bits of bfloat16.
Stored = Float32 | NDArray[np.uint16]

# Passes over a row's tokens, of several operations each.
_OPERATIONS = 32


class Summary(NamedTuple):
    """Of a row of logits. With a NaN in it, that is the largest."""

    best: int  # smallest id of the largest logit
    largest: float
    runner_up: float  # the largest of the others
    log_normalizer: float  # as `logprobs.log_normalizer`


class Row:
    """One row of raw logits [V]."""

    def __init__(self, stored: Stored, summary: Summary, address: int) -> None:
        """address: of ``stored``, for compiled code."""
        self.stored = stored
        self.summary = summary
        self.address = address

    @staticmethod
    def of(logits: Float32) -> Row:
        """From float32 [V]."""
        return summed_up(logits[None], [0])[0]

    @cached_property
    def values(self) -> Float32:
        """The logits as float32."""
        return floats(self.stored)

    def logit(self, token: int) -> float:
        """Of one token."""
        if token == self.summary.best:
            return self.summary.largest
        return float(floats(self.stored[token : token + 1])[0])


def stored(logits: torch.Tensor) -> Stored:
    """Logits of any floating type on the host, as they are or as float32."""
    if logits.dtype == torch.bfloat16:
        return logits.view(torch.uint16).numpy()
    return logits.float().numpy()


def floats(logits: Stored) -> Float32:
    """As float32; float32 itself without a copy."""
    if logits.dtype == np.uint16:
        # The upper half of a float32.
        return np.left_shift(logits, 16, dtype=np.uint32).view(np.float32)
    return logits.view(np.float32)


def summed_up(logits: Stored, chosen: Sequence[int]) -> list[Row]:
    """The chosen rows of logits [n, V]."""
    first, (stride, step), vocab, count = logits.ctypes.data, logits.strides, logits.shape[1], len(chosen)
    places = [first + stride * number for number in chosen]
    loop = _loop(logits.dtype == np.uint16)
    if loop is None or not chosen:
        found = [_summary(floats(logits[number])) for number in chosen]
    else:
        assert step == logits.itemsize
        addresses, numbers = np.array(places), np.empty((count, len(Summary._fields)))
        loop(count, _OPERATIONS * count * vocab, vocab, addresses.ctypes.data, numbers.ctypes.data)
        found = [Summary(int(best), *others) for best, *others in numbers.tolist()]
    return [Row(logits[number], each, place) for number, each, place in zip(chosen, found, places, strict=True)]


class LogitRows:
    """The rows of logits [n, V]: those that are wanted for certain are summed up at once, others when asked for."""

    def __init__(self, logits: torch.Tensor, wanted: Sequence[int]) -> None:
        self._stored = stored(logits)
        self._rows = dict(zip(wanted, summed_up(self._stored, wanted), strict=True))

    def __getitem__(self, number: int) -> Row:
        return self._rows.get(number) or summed_up(self._stored, [number])[0]


@cache
def _loop(short: bool) -> Any:
    def make() -> Any:
        from dartspec.services.verifier.summary_loop import summary_loop

        return summary_loop(torch.bfloat16 if short else torch.float32)

    return loop_or_none(make, "rows of logits are summed up")


def _summary(values: Float32) -> Summary:
    best = int(np.argmax(values))  # the first of equal maxima; a NaN counts as the maximum
    largest = float(values[best])
    if not largest > -np.inf:
        return Summary(best, largest, -np.inf, -np.inf)
    others = max(values[:best].max(initial=-np.inf), values[best + 1 :].max(initial=-np.inf))
    return Summary(best, largest, float(others), log_normalizer(values))
