"""From a row of logits to the next token. Pure; the same code serves plain decoding and every node of a tree.

The token at position p is argmax_v z_p(v) at temperature 0, else argmax_v (z_p(v) + G(seed, p, v)), smallest id on
ties, where z_p are the processed logits. By the Gumbel-max identity that is a draw from softmax(z_p); because G is a
function of (seed, p, v) alone, the whole output is a function of (prompt, parameters, seed). See docs/exactness.md.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from dartspec.services.common.errors import InternalError
from dartspec.services.common.types import Float32, Sampling
from dartspec.services.verifier.candidates import Candidates, Scores, candidates, has_filters
from dartspec.services.verifier.draw import draw, draw_of_row, margin
from dartspec.services.verifier.rows import Row

# Names this algorithm in the Hello of both sides; change it with anything that changes a token.
SAMPLER = "gumbel-philox4x32-10/1"


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


def choose(
    logits: Float32, position: int, history: History, sampling: Sampling, seed: int, enders: frozenset[int]
) -> int:
    """The token at ``position`` given the raw logits float32 [V] of the position before it.

    ``enders`` are the ids that end the answer. Raises InternalError when the logits hold a NaN.
    """
    return choose_with_margin(Row.of(logits), position, history, sampling, seed, enders)[0]


def draws_from_whole_row(sampling: Sampling, history: History, vocab: int) -> bool:
    """Whether a choice is a draw from all logits as they are, so that it can be made along with those of others."""
    return sampling.temperature > 0.0 and not _edits_logits(sampling, history) and not has_filters(sampling, vocab)


def choose_with_margin(
    row: Row,
    position: int,
    history: History,
    sampling: Sampling,
    seed: int,
    enders: frozenset[int],
    drawn: tuple[int, float] | None = None,
) -> tuple[int, float]:
    """As `choose`, from a row that was summed up, and by how much the token's score beat the runner-up's.

    drawn: what came of it, if it `draws_from_whole_row` and was drawn along with others already.

    The margin is exact below `draw.MARGIN_LIMIT`; above, it is only known to be above. It is infinite without a
    runner-up.
    """
    edited = _edits_logits(sampling, history)
    scores = _edited(row.values, history, sampling, enders) if edited else None
    best = _usable(*(row.summary[:2] if scores is None else _largest(scores)))
    if sampling.temperature == 0.0:
        return best, row.summary.largest - row.summary.runner_up if scores is None else margin(scores, best)
    if has_filters(sampling, len(row.stored)):
        return draw(candidates(row.values if scores is None else scores, sampling), position, seed)
    if drawn is not None:
        return drawn
    return draw_of_row(row.stored if scores is None else scores, best, sampling.temperature, position, seed)


def processed(logits: Float32, history: History, sampling: Sampling, enders: frozenset[int]) -> Candidates:
    """z_p of the design: bias, allowed, banned, min_tokens; penalties; temperature; top-k; top-p; min-p.

    At temperature 0 the division and the filters are left out: they never remove the argmax. Tokens with probability
    zero are not in the result, so no coin can choose them. Raises InternalError when the logits hold a NaN.
    """
    scores = _edited(logits, history, sampling, enders) if _edits_logits(sampling, history) else logits
    _usable(*_largest(scores))
    return candidates(scores, sampling)


def _largest(scores: Scores) -> tuple[int, float]:
    """The smallest id of the largest score, and that score."""
    best = int(np.argmax(scores))  # the first of equal maxima; a NaN counts as the maximum
    return best, float(scores[best])


def _usable(best: int, largest: float) -> int:
    """``best``. Raises InternalError for a NaN, or when no token is left."""
    if math.isnan(largest):
        raise InternalError("the target's logits hold a NaN")
    if largest == -math.inf:
        raise InternalError("no token of the vocabulary is left to choose: min_tokens bans all that is allowed")
    return best


def _edited(logits: Float32, history: History, sampling: Sampling, enders: frozenset[int]) -> Scores:
    """The logits with everything applied that comes before the temperature."""
    scores = logits.astype(np.float64)
    for token, bias in sampling.logit_bias.items():
        scores[token] += bias
    _ban(scores, history, sampling, enders)
    _penalise(scores, history, sampling)
    return scores


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
