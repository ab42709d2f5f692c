"""Decoding as its definition says: one token after the other, each from a fresh pass over everything before it.

Of the verifier it uses the target's forward pass alone. Tokens are chosen by `naive_processed` and Philox step by step,
log-probabilities are computed in float64 from the raw logits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest

from dartspec.services.common.types import Sampling, TopTokens
from dartspec.services.verifier.attention import Segment, causal_rows
from dartspec.services.verifier.messages import Finish
from dartspec.services.verifier.target import Target

from .naive_noise import naive_philox
from .naive_sampling import naive_processed


@dataclass
class Answered:
    """An answer and what is told about each of its tokens."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    top_logprobs: list[TopTokens] = field(default_factory=list)
    finish: Finish | None = None


def assert_told_alike(got: Answered, expected: Answered, tolerance: float = 1e-4) -> None:
    """The same log-probabilities, and the same likeliest tokens at each position."""
    assert got.logprobs == pytest.approx(expected.logprobs, abs=tolerance)
    for ours, theirs in zip(got.top_logprobs, expected.top_logprobs, strict=True):
        assert [value for _, value in ours] == pytest.approx([value for _, value in theirs], abs=tolerance)
        assert len(dict(ours)) == len(ours)
        known = dict(theirs)
        # Of the last and of one that has just not made it, rounding may choose the other.
        assert all(abs(known.get(token, theirs[-1][1]) - value) < tolerance for token, value in ours)


def naive_answer(
    target: Target, prompt: Sequence[int], sampling: Sampling, seed: int, context: int = 1 << 30
) -> Answered:
    """The whole answer; a session holds at most ``context`` tokens."""
    enders = set(sampling.stop_token_ids) | (set() if sampling.ignore_eos else set(target.config.eos_token_ids))
    answer = Answered()
    while answer.finish is None:
        tokens = [*prompt, *answer.tokens]
        logits = last_logits(target, tokens)
        token = naive_choice(logits, prompt, answer.tokens, len(tokens), sampling, seed, enders)
        normalizer = math.log(math.fsum(math.exp(value) for value in logits))
        ranked = sorted(range(len(logits)), key=lambda v: (-logits[v], v))[: sampling.top_logprobs]
        answer.tokens.append(token)
        answer.logprobs.append(logits[token] - normalizer)
        if ranked:
            answer.top_logprobs.append(tuple((v, logits[v] - normalizer) for v in ranked))
        if token in enders:
            answer.finish = Finish.STOP
        elif len(answer.tokens) >= sampling.max_tokens or len(tokens) + 1 >= context:
            answer.finish = Finish.LENGTH
    return answer


def last_logits(target: Target, tokens: Sequence[int]) -> list[float]:
    """Raw logits behind the last token."""
    rows = len(tokens)
    cache = target.new_cache(rows)
    try:
        out = target.forward([Segment(cache, list(tokens), np.arange(rows, dtype=np.int32), causal_rows(rows))])
        return target.logits(out.hidden[-1:])[0].float().tolist()
    finally:
        cache.release()


def naive_choice(
    logits: Sequence[float],
    prompt: Sequence[int],
    generated: Sequence[int],
    position: int,
    sampling: Sampling,
    seed: int,
    enders: set[int],
) -> int:
    """argmax of processed logit and noise, the smallest id of equals."""
    scores = naive_processed(logits, prompt, generated, sampling, enders)
    if sampling.temperature > 0:
        noise = naive_noise(len(logits), position, seed)
        scores = {token: score + noise[token] for token, score in scores.items()}
    return min(scores, key=lambda token: (-scores[token], token))


def naive_noise(vocab: int, position: int, seed: int) -> list[float]:
    """G(seed, position, v) of every token v."""
    counters = np.arange(-(-vocab // 4), dtype=np.uint64)
    bits = naive_philox(counters, np.uint64(position), np.uint64(seed)).reshape(-1).tolist()
    return [-math.log(-math.log((r + 0.5) / 2**32)) for r in bits[:vocab]]
