"""`sampling.processed` once more, in plain Python, straight from the order in docs/exactness.md."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from dartspec.services.common.types import Sampling


def naive_processed(
    logits: Sequence[float],
    prompt: Sequence[int],
    generated: Sequence[int],
    sampling: Sampling,
    enders: Collection[int],
) -> dict[int, float]:
    """Processed logit of each token that can be chosen, up to a constant that all of them share."""
    scores = {token: float(value) for token, value in enumerate(logits)}
    for token, bias in sampling.logit_bias.items():
        scores[token] += bias
    if sampling.allowed_token_ids:
        scores = {token: score for token, score in scores.items() if token in sampling.allowed_token_ids}
    scores = {token: score for token, score in scores.items() if token not in sampling.banned_token_ids}
    if len(generated) < sampling.min_tokens:
        scores = {token: score for token, score in scores.items() if token not in enders}
    for token in scores:
        if token in prompt or token in generated:
            if scores[token] > 0:
                scores[token] /= sampling.repetition_penalty
            else:
                scores[token] *= sampling.repetition_penalty
        if token in generated:
            scores[token] -= sampling.presence_penalty
            scores[token] -= sampling.frequency_penalty * list(generated).count(token)
    scores = {token: score for token, score in scores.items() if score != -math.inf}
    if sampling.temperature == 0 or not scores:
        return scores
    scores = {token: score / sampling.temperature for token, score in scores.items()}
    ranked = sorted(scores, key=lambda token: (-scores[token], token))
    if sampling.top_k:
        ranked = ranked[: sampling.top_k]
    if sampling.top_p < 1:
        ranked = ranked[: _nucleus([scores[token] for token in ranked], sampling.top_p)]
    if sampling.min_p > 0:
        best = scores[ranked[0]]
        ranked = [token for token in ranked if scores[token] - best >= math.log(sampling.min_p)]
    return {token: scores[token] for token in ranked}


def _nucleus(scores: Sequence[float], top_p: float) -> int:
    """How many of the descending ``scores`` it takes to reach ``top_p``."""
    weights = [math.exp(score - scores[0]) for score in scores]
    wanted, reached = top_p * math.fsum(weights), 0.0
    for count, weight in enumerate(weights, start=1):
        reached += weight
        if reached >= wanted:
            return count
    return len(weights)
