"""Log-probabilities under the raw logits, in float32. Pure."""

from __future__ import annotations

import math

import numpy as np
import torch

from dartspec.services.common.types import Float32, TopTokens
from dartspec.services.verifier.candidates import largest
from dartspec.services.verifier.serial import SERIAL_ELEMENTS

# Below, terms are so small that float32 holds them with fewer digits.
_SMALLEST_SUM = 1e-25


def log_normalizer(logits: Float32) -> float:
    """ln of the sum of exp(logits), float32 [V]: what is subtracted from a logit to make a log-probability."""
    # Without the usual shift, which takes two more passes over the row, as long as float32 has room for the sum.
    total = _sum_of_exp(torch.from_numpy(logits))
    if _SMALLEST_SUM < total < math.inf:
        return math.log(total)
    shift = float(logits.max())
    return shift + math.log(_sum_of_exp(torch.from_numpy(logits - shift)))


def _sum_of_exp(row: torch.Tensor) -> float:
    return sum(float(part.exp().sum()) for part in row.split(SERIAL_ELEMENTS))


def log_probability(logit: float, normalizer: float) -> float:
    """ln softmax of a token, from its raw logit and its row's `log_normalizer`; never above 0."""
    return min(logit - normalizer, 0.0)


def top_tokens(logits: Float32, count: int, normalizer: float) -> TopTokens:
    """The ``count`` likeliest tokens, or the whole vocabulary if it is smaller; ``normalizer`` as `log_normalizer`."""
    ids = largest(logits, count)
    values = logits[ids]
    order = np.argsort(-values, kind="stable")
    return tuple(
        (token, log_probability(value, normalizer))
        for token, value in zip(ids[order].tolist(), values[order].tolist(), strict=True)
    )
