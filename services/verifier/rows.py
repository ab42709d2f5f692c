"""Rows of logits on the host: as they are stored, as float32, and what every choice needs to know of them."""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from dartspec.services.common.types import Float32
from dartspec.services.verifier.logprobs import log_normalizer

# float32, or the bits of bfloat16.
Stored = Float32 | NDArray[np.uint16]


class Summary(NamedTuple):
    """Of a row of logits. With a NaN in it, that is the largest."""

    best: int  # smallest id of the largest logit
    largest: float
    runner_up: float  # the largest of the others
    log_normalizer: float  # as `logprobs.log_normalizer`


class Drawn(NamedTuple):
    """A token, the margin by which it won, as `sampling.choose_with_margin` says, and its raw logit."""

    token: int
    margin: float
    logit: float


class Row:
    """One row of raw logits [V], summed up; and what was drawn from it, None if nothing was."""

    def __init__(self, stored: Stored, summary: Summary, drawn: Drawn | None) -> None:
        self.stored = stored
        self.summary = summary
        self.drawn = drawn

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


def summary_of(values: Float32) -> Summary:
    """By numpy."""
    best = int(np.argmax(values))  # the first of equal maxima; a NaN counts as the maximum
    largest = float(values[best])
    if not largest > -np.inf:
        return Summary(best, largest, -np.inf, -np.inf)
    others = max(values[:best].max(initial=-np.inf), values[best + 1 :].max(initial=-np.inf))
    return Summary(best, largest, float(others), log_normalizer(values))
