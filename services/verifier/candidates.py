"""Which tokens may be chosen: the largest scores, and the filters top-k, top-p and min-p. Pure.

Scores are taken before the division by the temperature, which changes no order, so that whole rows are compared as they
are and only what may stay is divided.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dartspec.services.common.types import Sampling
from dartspec.services.verifier.serial import exp_in_place

Scores = NDArray[np.float32] | NDArray[np.float64]

# A quotient by less could overflow; at this temperature the choice is the argmax already, to any precision.
COLDEST = 1e-300

_COLUMNS = 1024
_FEW = 1024
_TOP_P_SHARES = (1e-3, 1e-4, 1e-5)


@dataclass(frozen=True)
class Candidates:
    """The tokens that may be chosen, ids rising, and their processed logits."""

    ids: NDArray[np.int64]
    scores: NDArray[np.float64]

    def where(self, mask: NDArray[np.bool_]) -> Candidates:
        """Those at which the mask is true."""
        return Candidates(self.ids[mask], self.scores[mask])


def has_filters(sampling: Sampling, vocab: int) -> bool:
    """Top-k, top-p or min-p can remove a token of a vocabulary of this size."""
    return 0 < sampling.top_k < vocab or sampling.top_p < 1.0 or sampling.min_p > 0.0


def candidates(scores: Scores, sampling: Sampling) -> Candidates:
    """Division by the temperature, top-k, top-p, min-p. scores: float [V], minus infinity where removed already.

    At temperature 0 none of them is applied: they never remove the argmax.
    """
    temperature = max(sampling.temperature, COLDEST)
    if sampling.temperature == 0.0:
        ids = np.flatnonzero(scores > -np.inf)
        return Candidates(ids, scores[ids].astype(np.float64))
    if 0 < sampling.top_k < len(scores):
        ids = largest(scores, sampling.top_k)
        ids = ids[scores[ids] > -np.inf]
        if sampling.top_p < 1.0:
            ids = ids[_nucleus(scores[ids], temperature, sampling.top_p)]
    elif sampling.top_p < 1.0:
        ids = _nucleus(scores, temperature, sampling.top_p)
    elif sampling.min_p > 0.0:
        top = float(scores.max()) / temperature
        ids = at_least(scores, lowered((top + float(np.log(sampling.min_p))) * temperature))
    else:
        ids = np.flatnonzero(scores > -np.inf)
    kept = Candidates(ids, scores[ids].astype(np.float64) / temperature)
    if sampling.min_p > 0.0:
        kept = kept.where(kept.scores >= kept.scores.max() + np.log(sampling.min_p))
    return kept


def largest(scores: Scores, count: int) -> NDArray[np.int64]:
    """Ids of the ``count`` largest scores, or of all, rising; of equals the smaller ids."""
    ids = at_least(scores, _floor(scores, count))
    values = scores[ids]
    if len(ids) <= count:
        return ids
    cut = len(values) - count
    threshold = np.partition(values, cut)[cut]
    stays = values > threshold
    # Of those that tie at the threshold the first, which have the smaller ids.
    stays[np.flatnonzero(values == threshold)[: count - int(stays.sum())]] = True
    return ids[stays]


def at_least(scores: Scores, level: float) -> NDArray[np.int64]:
    """Ids of the scores that reach ``level``, rising. Made for few of many: eight of them are looked at together."""
    reached = scores >= level
    whole = len(reached) - len(reached) % 8
    eights = np.flatnonzero(reached[:whole].view(np.uint64) != 0)
    places = np.flatnonzero(reached[:whole].reshape(-1, 8)[eights])
    ids = 8 * eights[places >> 3] + (places & 7)
    return ids if whole == len(reached) else np.concatenate([ids, whole + np.flatnonzero(reached[whole:])])


def lowered(level: float) -> float:
    """A level that no score of at least ``level`` misses, however both have been rounded; a few below reach it too."""
    return level - 1e-6 * abs(level) - 1e-6


def _floor(scores: Scores, count: int) -> float:
    """A number that at least ``count`` scores reach and few others."""
    whole = len(scores) - len(scores) % _COLUMNS
    if not whole or count > _COLUMNS:
        return -np.inf
    # The best score of each of many groups: so many of them reach the count-th, and seldom many more.
    best = scores[:whole].reshape(-1, _COLUMNS).max(axis=0)
    return float(np.partition(best, _COLUMNS - count)[_COLUMNS - count])


def _nucleus(scores: Scores, temperature: float, top_p: float) -> NDArray[np.int64]:
    """Places of the largest scores that together have ``top_p`` of the probability, rising; of equals the first."""
    highest = float(scores.max())
    # Few tokens are weighed and sorted; only rounding can ask for more.
    likely, total = _likely(scores, highest, temperature, top_p)
    order = np.argsort(-scores[likely], kind="stable")
    weights = _weights(scores[likely[order]], highest, temperature)
    count = int(np.searchsorted(np.cumsum(weights), top_p * total, side="left")) + 1
    return np.sort(likely[order[:count]])


def _weights(scores: Scores, highest: float, temperature: float) -> NDArray[np.float64]:
    """exp((score - highest) / temperature)."""
    weights = scores.astype(np.float64)
    weights -= highest
    weights /= temperature
    if len(weights) <= _FEW:
        return np.exp(weights, out=weights)  # torch, which does the many, takes long to begin
    exp_in_place(weights)
    return weights


def _likely(scores: Scores, highest: float, temperature: float, top_p: float) -> tuple[NDArray[np.int64], float]:
    """Tokens, rising, that hold the nucleus, and the sum of all weights."""
    weights = _weights(scores, highest, temperature)
    total = float(weights.sum())
    # Those of a share of the total, if they make up enough. All that fall short of the last share together weigh less
    # than what may be left out.
    for share in (*_TOP_P_SHARES, (1.0 - top_p) / len(weights)):
        likely = at_least(weights, share * total)
        if weights[likely].sum() >= top_p * total:
            return likely, total
    return np.flatnonzero(weights), total
