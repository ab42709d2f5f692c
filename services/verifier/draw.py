"""The draw: argmax of score plus noise, smallest id on ties, and the margin by which it was won. Pure.

A token can win only if its score with the largest possible noise reaches a total that is there already, that of the
likeliest token, so noise is computed for such tokens only. A token far below that total wins only with random bits near
their top: logarithms are taken of the few that remain.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dartspec.services.verifier import draw_kernel, noise
from dartspec.services.verifier.candidates import COLDEST, Candidates, Scores, at_least, lowered
from dartspec.services.verifier.draw_kernel import FAR, MARGIN_LIMIT
from dartspec.services.verifier.rows import Stored, floats

# Tokens whose noise is made at once, without a look at which of them can win.
_FEW = 128

_WORD = 0xFFFFFFFF
_LUCKY = np.uint64(noise.bits_above(FAR))


def draw(kept: Candidates, position: int, seed: int) -> tuple[int, float]:
    """The token with the largest score plus noise, and its margin."""
    if len(kept.ids) <= _FEW:
        return _first(kept.ids, kept.scores, _noise_bits(kept.ids, position, seed))
    best = int(np.argmax(kept.scores))
    reach = kept.scores[best] + noise.gumbel_once(int(kept.ids[best]), position, seed) - MARGIN_LIMIT
    alive = kept.where(kept.scores >= lowered(reach - noise.MAX_GUMBEL))
    bits = _noise_bits(alive.ids, position, seed)
    winners = np.flatnonzero((alive.scores >= lowered(reach - FAR)) | (bits >= _LUCKY))
    return _first(alive.ids[winners], alive.scores[winners], bits[winners])


def draw_of_row(scores: Scores | Stored, best: int, temperature: float, position: int, seed: int) -> tuple[int, float]:
    """As `draw` over a whole row, undivided: [V] with minus infinity where a token was removed; its argmax."""
    floor, near = _levels(best, float(_floats(scores[best : best + 1])[0]), temperature, position, seed)
    if draw_kernel.survivors is None:
        ids, bits = _survivors(_floats(scores), floor, near, position, seed)
    else:
        ids, bits = np.empty(len(scores), np.int64), np.empty(len(scores), np.uint64)
        kind = np.float64 if scores.dtype == np.float64 else np.float32
        levels = (kind(floor), kind(near))
        maxima = np.full(-(-len(scores) // draw_kernel.PART), np.inf, np.float32)
        keys = np.uint32(_LUCKY), *_key_words(position, seed)
        count = draw_kernel.survivors(scores, maxima, *levels, *keys, ids, bits)
        ids, bits = ids[:count], bits[:count]
    return _first(ids, _floats(scores[ids]).astype(np.float64) / max(temperature, COLDEST), bits)


def _levels(best: int, largest: float, temperature: float, position: int, seed: int) -> tuple[float, float]:
    """What a score must reach to win with the largest noise, and with noise that is not rare."""
    temperature = max(temperature, COLDEST)
    reach = largest / temperature + noise.gumbel_once(best, position, seed) - MARGIN_LIMIT
    return lowered((reach - noise.MAX_GUMBEL) * temperature), lowered((reach - FAR) * temperature)


def warm_up() -> None:
    """Have the kernels compiled, or read from where they are kept: seconds that no request should pay for."""
    draw_of_row(np.zeros(8, np.float32), 0, 1.0, 0, 0)
    draw_of_row(np.zeros(8, np.float64), 0, 1.0, 0, 0)
    draw_of_row(np.zeros(8, np.uint16), 0, 1.0, 0, 0)
    draw(Candidates(np.arange(8), np.zeros(8)), 0, 0)


def _floats(scores: Scores | Stored) -> Scores:
    return scores if scores.dtype == np.float64 else floats(scores)  # type: ignore[arg-type, return-value]


def _key_words(position: int, seed: int) -> tuple[np.uint64, np.uint64, np.uint64]:
    """Position and the two halves of the seed as the kernels take them."""
    return np.uint64(position & _WORD), np.uint64(seed & _WORD), np.uint64(seed >> 32)


def _noise_bits(tokens: NDArray[np.int64], position: int, seed: int) -> noise.UInt64:
    if draw_kernel.noise_bits is None:
        return noise.noise_bits(tokens, position, seed)
    bits = np.empty(len(tokens), np.uint64)
    draw_kernel.noise_bits(tokens, *_key_words(position, seed), bits)
    return bits


def _survivors(
    scores: Scores, floor: float, near: float, position: int, seed: int
) -> tuple[NDArray[np.int64], noise.UInt64]:
    """What the kernel finds, and some more, by numpy: ids rising, and their noise bits."""
    vocab = len(scores)
    if spare := -len(scores) % 4:
        scores = np.concatenate([scores, np.full(spare, -np.inf, scores.dtype)])
    # One counter makes the noise of four tokens.
    alive = (scores >= floor).view(np.uint32)
    groups = np.flatnonzero(alive != 0)
    words = noise.philox(groups, position, seed)
    likely = at_least(scores, near)
    places = 4 * np.searchsorted(groups, likely >> 2) + (likely & 3)
    lucky = np.flatnonzero(_largest_word(words) >= _LUCKY)
    places = _distinct(np.concatenate([places, *(4 * lucky + lane for lane in range(4))]))
    ids = 4 * groups[places >> 2] + (places & 3)
    real = ids < vocab
    return ids[real], noise.pick(words, places)[real]


def margin(scores: Scores, best: int) -> float:
    """scores[best] minus the best of the others; infinite without any."""
    others = max(scores[:best].max(initial=-np.inf), scores[best + 1 :].max(initial=-np.inf))
    return float(scores[best]) - float(others)


def _first(ids: NDArray[np.int64], scores: NDArray[np.float64], bits: noise.UInt64) -> tuple[int, float]:
    totals = scores + noise.gumbel_of_bits(bits)
    first = int(np.argmax(totals))
    return int(ids[first]), margin(totals, first)


def _largest_word(words: noise.Words) -> noise.UInt64:
    w0, w1, w2, w3 = words
    return np.maximum(np.maximum(w0, w1), np.maximum(w2, w3))


def _distinct(numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    """The numbers once each, rising; there is at least one."""
    numbers.sort()
    new = np.empty(len(numbers), dtype=bool)
    new[0] = True
    np.not_equal(numbers[1:], numbers[:-1], out=new[1:])
    return numbers[new]
