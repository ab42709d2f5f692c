"""From a row of logits to the next token. Pure; the same code serves plain decoding and every node of a tree.

The token at position p is argmax_v z_p(v) at temperature 0, else argmax_v (z_p(v) + G(seed, p, v)), smallest id on
ties, where z_p are the processed logits. By the Gumbel-max identity that is a draw from softmax(z_p); because G is a
function of (seed, p, v) alone, the whole output is a function of (prompt, parameters, seed). See docs/exactness.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from dartspec.services.common.errors import InternalError
from dartspec.services.common.types import Float32, Sampling
from dartspec.services.verifier.noise import MAX_GUMBEL, bits_above, gumbel, gumbel_of_bits, noise_bits

# Names this algorithm in the Hello of both sides; change it with anything that changes a token.
SAMPLER = "gumbel-philox4x32-10/1"

# A margin below this is exact: tokens that come this close to the winner are never left out of the comparison.
MARGIN_LIMIT = 0.01

_TOP_P_FIRST = 2048
# A quotient by less could overflow; at this temperature the choice is the argmax already, to any precision.
_COLDEST = 1e-300
_FAR = 6.0


@dataclass
class History:
    """The tokens that penalties and limits look at: prompt and answer up to the node whose logits are processed."""

    prompt: frozenset[int] = frozenset()
    generated: Counter[int] = field(default_factory=Counter)
    length: int = 0

    @staticmethod
    def of(prompt: Iterable[int], generated: Iterable[int] = ()) -> History:
        """History of a prompt and the answer so far."""
        counts = Counter(generated)
        return History(frozenset(prompt), counts, counts.total())

    def append(self, token: int) -> None:
        """The answer grew by ``token``."""
        self.generated[token] += 1
        self.length += 1


@dataclass(frozen=True)
class Candidates:
    """The tokens that may be chosen, ids rising, and their processed logits."""

    ids: NDArray[np.int64]
    scores: NDArray[np.float64]


def choose(
    logits: Float32, position: int, history: History, sampling: Sampling, seed: int, enders: frozenset[int]
) -> int:
    """The token at ``position`` given the raw logits float32 [V] of the position before it.

    ``enders`` are the ids that end the answer. Raises InternalError when the logits hold a NaN.
    """
    return choose_with_margin(logits, position, history, sampling, seed, enders)[0]


def choose_with_margin(
    logits: Float32, position: int, history: History, sampling: Sampling, seed: int, enders: frozenset[int]
) -> tuple[int, float]:
    """As `choose`, and by how much the token's score beat the runner-up's.

    The margin is exact below `MARGIN_LIMIT`; above, it is only known to be above. It is infinite without a runner-up.
    """
    if sampling.temperature == 0.0 and not _edits_logits(sampling, history):
        best = int(np.argmax(logits))  # the first of equal maxima; a NaN counts as the maximum
        if np.isnan(logits[best]):
            raise InternalError("the target's logits hold a NaN")
        return best, _margin(logits, best)
    kept = processed(logits, history, sampling, enders)
    if sampling.temperature == 0.0:
        first = int(np.argmax(kept.scores))
        return int(kept.ids[first]), _margin(kept.scores, first)
    return _gumbel_argmax(kept, position, seed)


def processed(logits: Float32, history: History, sampling: Sampling, enders: frozenset[int]) -> Candidates:
    """z_p of the design: bias, allowed, banned, min_tokens; penalties; temperature; top-k; top-p; min-p.

    At temperature 0 the division and the filters are left out: they never remove the argmax. Tokens with probability
    zero are not in the result, so no coin can choose them. Raises InternalError when the logits hold a NaN.
    """
    if np.isnan(logits.max()):
        raise InternalError("the target's logits hold a NaN")
    scores = logits.astype(np.float64)
    if _edits_logits(sampling, history):
        for token, bias in sampling.logit_bias.items():
            scores[token] += bias
        _ban(scores, history, sampling, enders)
        _penalise(scores, history, sampling)
    kept = Candidates(np.arange(len(scores)), scores)
    if np.isneginf(scores.min()):
        kept = _select(kept, scores > -np.inf)
    if not len(kept.ids):
        raise InternalError("no token of the vocabulary is left to choose: min_tokens bans all that is allowed")
    if sampling.temperature == 0.0:
        return kept
    kept = Candidates(kept.ids, kept.scores / max(sampling.temperature, _COLDEST))
    if 0 < sampling.top_k < len(kept.ids):
        kept = _top_k(kept, sampling.top_k)
    if sampling.top_p < 1.0:
        kept = _top_p(kept, sampling.top_p)
    if sampling.min_p > 0.0:
        floor = kept.scores.max() + np.log(sampling.min_p)
        kept = _select(kept, kept.scores >= floor)
    return kept


def log_probability(logits: Float32, token: int) -> float:
    """ln softmax(logits)[token] of the raw logits float32 [V]."""
    top = logits.max()
    return float(logits[token] - top) - float(np.log(np.exp(logits - top).sum(dtype=np.float64)))


def _edits_logits(sampling: Sampling, history: History) -> bool:
    return bool(
        sampling.logit_bias
        or sampling.allowed_token_ids
        or sampling.banned_token_ids
        or history.length < sampling.min_tokens
        or sampling.repetition_penalty != 1.0
        or sampling.presence_penalty
        or sampling.frequency_penalty
    )


def _ban(scores: NDArray[np.float64], history: History, sampling: Sampling, enders: frozenset[int]) -> None:
    if sampling.allowed_token_ids:
        outside = np.ones(len(scores), dtype=bool)
        outside[list(sampling.allowed_token_ids)] = False
        scores[outside] = -np.inf
    scores[list(sampling.banned_token_ids)] = -np.inf
    if history.length < sampling.min_tokens:
        scores[sorted(enders)] = -np.inf


def _penalise(scores: NDArray[np.float64], history: History, sampling: Sampling) -> None:
    if sampling.repetition_penalty != 1.0:
        seen = np.fromiter(history.prompt | history.generated.keys(), dtype=np.int64)
        values = scores[seen]
        scores[seen] = np.where(values > 0, values / sampling.repetition_penalty, values * sampling.repetition_penalty)
    if (sampling.presence_penalty or sampling.frequency_penalty) and history.generated:
        ids = np.fromiter(history.generated.keys(), dtype=np.int64)
        counts = np.fromiter(history.generated.values(), dtype=np.float64)
        scores[ids] -= sampling.presence_penalty + sampling.frequency_penalty * counts


def _select(kept: Candidates, mask: NDArray[np.bool_]) -> Candidates:
    return Candidates(kept.ids[mask], kept.scores[mask])


def _top_k(kept: Candidates, k: int) -> Candidates:
    cut = len(kept.scores) - k
    threshold = np.partition(kept.scores, cut)[cut]
    above = kept.scores > threshold
    # Exactly k are kept: of those that tie at the threshold, the smaller ids, which come first.
    ties = np.flatnonzero(kept.scores == threshold)[: k - int(above.sum())]
    above[ties] = True
    return _select(kept, above)


def _top_p(kept: Candidates, top_p: float) -> Candidates:
    weights = np.exp(kept.scores - kept.scores.max())
    wanted = top_p * weights.sum()
    # A stable sort of a few likely tokens is enough nearly always, and keeps smaller ids first among equals.
    for size in (_TOP_P_FIRST, len(weights)):
        if size < len(weights):
            cut = len(weights) - size
            threshold = np.partition(weights, cut)[cut]
            likely = np.flatnonzero(weights >= threshold)
        else:
            likely = np.arange(len(weights))
        order = likely[np.argsort(-kept.scores[likely], kind="stable")]
        reached = np.cumsum(weights[order])
        if reached[-1] >= wanted or size >= len(weights):
            break
    count = int(np.searchsorted(reached, wanted, side="left")) + 1
    mask = np.zeros(len(weights), dtype=bool)
    mask[order[:count]] = True
    return _select(kept, mask)


def _gumbel_argmax(kept: Candidates, position: int, seed: int) -> tuple[int, float]:
    # A token can win only if its score with the largest possible noise reaches a total that is already there, and one
    # far below that total only with random bits near the top: logarithms are taken for the few that remain.
    top = int(np.argmax(kept.scores))
    reach = kept.scores[top] + gumbel(kept.ids[top : top + 1], position, seed)[0] - MARGIN_LIMIT
    alive = kept if kept.scores.min() + MAX_GUMBEL >= reach else _select(kept, kept.scores + MAX_GUMBEL >= reach)
    bits = noise_bits(alive.ids, position, seed)
    winners = np.flatnonzero((alive.scores >= reach - _FAR) | (bits >= bits_above(_FAR)))
    totals = alive.scores[winners] + gumbel_of_bits(bits[winners])
    first = int(np.argmax(totals))
    return int(alive.ids[winners[first]]), _margin(totals, first)


def _margin(scores: NDArray[np.floating], best: int) -> float:
    """scores[best] minus the best of the others."""
    others = max(scores[:best].max(initial=-np.inf), scores[best + 1 :].max(initial=-np.inf))
    return float(scores[best]) - float(others)
