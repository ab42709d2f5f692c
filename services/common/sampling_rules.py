"""Which sampling parameters are allowed. The same rules at the gateway and at the verifier."""

from __future__ import annotations

import math

from dartspec.services.common.errors import InvalidArgument
from dartspec.services.common.types import Sampling

MAX_STOP_TOKENS = 64
MAX_TEMPERATURE = 100.0
MAX_TOP_LOGPROBS = 20


def check_sampling(sampling: Sampling, vocab_size: int) -> None:
    """Raise InvalidArgument with the name of the first field that is out of range."""
    _check_range("temperature", sampling.temperature, 0.0, MAX_TEMPERATURE)
    if sampling.max_tokens < 1:
        raise InvalidArgument("sampling.max_tokens", f"must be at least 1, got {sampling.max_tokens}")
    if sampling.top_k < 0:
        raise InvalidArgument("sampling.top_k", f"must be 0 (off) or more, got {sampling.top_k}")
    _check_range("top_p", sampling.top_p, 0.0, 1.0, open_low=True)
    _check_range("min_p", sampling.min_p, 0.0, 1.0)
    _check_range("repetition_penalty", sampling.repetition_penalty, 0.0, 100.0, open_low=True)
    _check_range("presence_penalty", sampling.presence_penalty, -2.0, 2.0)
    _check_range("frequency_penalty", sampling.frequency_penalty, -2.0, 2.0)
    for token, bias in sampling.logit_bias.items():
        _check_token("logit_bias", token, vocab_size)
        if not math.isfinite(bias):
            raise InvalidArgument("sampling.logit_bias", f"token {token}: must be a finite number, got {bias}")
    for name in ("allowed_token_ids", "banned_token_ids", "stop_token_ids"):
        for token in getattr(sampling, name):
            _check_token(name, token, vocab_size)
    if len(sampling.stop_token_ids) > MAX_STOP_TOKENS:
        raise InvalidArgument(
            "sampling.stop_token_ids", f"at most {MAX_STOP_TOKENS}, got {len(sampling.stop_token_ids)}"
        )
    if sampling.allowed_token_ids and not set(sampling.allowed_token_ids) - set(sampling.banned_token_ids):
        raise InvalidArgument(
            "sampling.allowed_token_ids", "every allowed token is banned too, so none could be chosen"
        )
    if not sampling.allowed_token_ids and len(set(sampling.banned_token_ids)) >= vocab_size:
        raise InvalidArgument("sampling.banned_token_ids", "the whole vocabulary is banned")
    if not 0 <= sampling.top_logprobs <= MAX_TOP_LOGPROBS:
        raise InvalidArgument(
            "sampling.top_logprobs", f"must be between 0 (off) and {MAX_TOP_LOGPROBS}, got {sampling.top_logprobs}"
        )
    if sampling.min_tokens > sampling.max_tokens:
        raise InvalidArgument(
            "sampling.min_tokens", f"must not exceed max_tokens ({sampling.max_tokens}), got {sampling.min_tokens}"
        )


def check_token_ids(field: str, token_ids: list[int] | tuple[int, ...], vocab_size: int) -> None:
    """Raise InvalidArgument for the first id that the vocabulary does not have."""
    for index, token in enumerate(token_ids):
        if not 0 <= token < vocab_size:
            raise InvalidArgument(field, f"id {token} at index {index} is not in the vocabulary of {vocab_size} tokens")


def _check_range(name: str, value: float, low: float, high: float, *, open_low: bool = False) -> None:
    inside = (low < value if open_low else low <= value) and value <= high
    if not inside:  # NaN compares false
        bracket = "(" if open_low else "["
        raise InvalidArgument(f"sampling.{name}", f"must be in {bracket}{low:g}, {high:g}], got {value}")


def _check_token(name: str, token: int, vocab_size: int) -> None:
    if not 0 <= token < vocab_size:
        raise InvalidArgument(f"sampling.{name}", f"id {token} is not in the vocabulary of {vocab_size} tokens")
