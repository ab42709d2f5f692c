"""From a row of logits to the next token. Pure; the same code serves plain decoding and every node of a tree.

The token at position p is argmax_v z_p(v) at temperature 0, else argmax_v (z_p(v) + G(seed, p, v)), smallest id on
ties, where z_p are the processed logits. By the Gumbel-max identity that is a draw from softmax(z_p); because G is a
function of (seed, p, v) alone, the whole output is a function of (prompt, parameters, seed). See docs/exactness.md.
"""

from __future__ import annotations

import math

import numpy as np

from dartspec.services.common.errors import InternalError
from dartspec.services.common.types import Float32, Sampling
from dartspec.services.verifier.candidates import Candidates, Scores, candidates, has_filters
from dartspec.services.verifier.draw import draw, draw_of_row, margin
from dartspec.services.verifier.edits import History
from dartspec.services.verifier.looks import Toss, look
from dartspec.services.verifier.rows import Row

# Names this algorithm in the Hello of both sides; change it with anything that changes a token.
SAMPLER = "gumbel-philox4x32-10/1"
# Rows of fewer tokens are drawn from by numpy alone: there is nothing to leave out.
FEW_TOKENS = 128


def choose(
    logits: Float32, position: int, history: History, sampling: Sampling, seed: int, enders: frozenset[int]
) -> int:
    """The token at ``position`` given the raw logits float32 [V] of the position before it.

    ``enders`` are the ids that end the answer. Raises InternalError when the logits hold a NaN.
    """
    toss = toss_of(len(logits), position, history, sampling, seed, enders)
    (row,) = look(logits[None], [0], [toss])
    if row.drawn is not None:
        return row.drawn.token
    return choose_with_margin(row, position, history, sampling, seed, enders)[0]


def toss_of(
    vocab: int, position: int, history: History, sampling: Sampling, seed: int, enders: frozenset[int]
) -> Toss | None:
    """What a draw from a row depends on; None when there is no coin, or there are few tokens to choose from."""
    if sampling.temperature == 0.0 or vocab < FEW_TOKENS:
        return None
    # Where few tokens are allowed, nearly all of the row is changed.
    return None if sampling.allowed_token_ids else Toss(sampling, position, seed, history.edits(sampling, enders))


def choose_with_margin(
    row: Row, position: int, history: History, sampling: Sampling, seed: int, enders: frozenset[int]
) -> tuple[int, float]:
    """As `choose`, by numpy, from a row that was summed up; and by how much the token's score beat the runner-up's.

    The margin is exact below `draw.MARGIN_LIMIT`; above, it is only known to be above. It is infinite without a
    runner-up.
    """
    edits = history.edits(sampling, enders)
    scores = edits.of(row.values) if edits.any else None
    best = _usable(*(row.summary[:2] if scores is None else _largest(scores)))
    if sampling.temperature == 0.0:
        return best, row.summary.largest - row.summary.runner_up if scores is None else margin(scores, best)
    if has_filters(sampling, len(row.stored)):
        return draw(candidates(row.values if scores is None else scores, sampling), position, seed)
    return draw_of_row(row.stored if scores is None else scores, best, sampling.temperature, position, seed)


def processed(logits: Float32, history: History, sampling: Sampling, enders: frozenset[int]) -> Candidates:
    """z_p of the design: bias, allowed, banned, min_tokens; penalties; temperature; top-k; top-p; min-p.

    At temperature 0 the division and the filters are left out: they never remove the argmax. Tokens with probability
    zero are not in the result, so no coin can choose them. Raises InternalError when the logits hold a NaN.
    """
    edits = history.edits(sampling, enders)
    scores = edits.of(logits) if edits.any else logits
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
