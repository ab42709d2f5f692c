"""Plain against DART: where tokens differ, and what each mode took. Pure; `cli.measure` makes the runs."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from dartspec.cli.answer import Answer

T = TypeVar("T")


@dataclass(frozen=True)
class Pair:
    """One prompt answered in both modes with the same seed and parameters."""

    prompt: str
    plain: Answer
    dart: Answer


@dataclass(frozen=True)
class Difference:
    """The first position at which two answers part; a token is None where its answer has ended already.

    ``gap`` is how far plain's token was ahead of its runner-up there, in units of processed logits: a tiny one tells
    a near-tie that rounding decided from a fault. None where plain has ended.
    """

    prompt: str
    index: int
    plain_token: int | None
    dart_token: int | None
    gap: float | None


@dataclass(frozen=True)
class Summary:
    """What a set of pairs shows. Speeds are tokens per second.

    Speeds and ratios are ratios of sums over all prompts unless the name says median: ``tokens_per_s`` counts the
    whole request by the client's clock, ``decode_tokens_per_s`` the tokens after the first by the gateway's.
    ``mean_committed`` (M) and ``mean_accepted`` (A) are per round that verified candidates; ``t_*_ms`` are the DART
    runs' times per pass, passes that decoded one token included. ``differing_tokens`` counts positions, a missing
    token too. A mean over nothing is None.
    """

    identical: bool
    differing_tokens: int
    prompts: int
    plain_tokens: int
    dart_tokens: int
    plain_tokens_per_s: float | None
    dart_tokens_per_s: float | None
    speedup: float | None
    median_speedup: float | None
    plain_decode_tokens_per_s: float | None
    dart_decode_tokens_per_s: float | None
    decode_speedup: float | None
    plain_ttft_ms: float
    dart_ttft_ms: float
    mean_committed: float | None
    mean_accepted: float | None
    dart_rounds: int
    plain_steps: int
    nodes_offered: int
    nodes_verified: int
    chain_fallbacks: int
    t_draft_ms: float | None
    t_search_ms: float | None
    t_verify_ms: float | None
    t_wait_ms: float | None
    t_other_ms: float | None
    t_plain_step_ms: float | None
    differences: tuple[Difference, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return dataclasses.asdict(self)


def first_difference(pair: Pair) -> Difference | None:
    """Where the two answers part, or None when their tokens are equal."""
    plain, dart = pair.plain, pair.dart
    common = min(len(plain.token_ids), len(dart.token_ids))
    index = next((i for i in range(common) if plain.token_ids[i] != dart.token_ids[i]), common)
    if index == len(plain.token_ids) == len(dart.token_ids):
        return None
    return Difference(
        pair.prompt, index, _at(plain.token_ids, index), _at(dart.token_ids, index), _at(plain.margins, index)
    )


def differing_tokens(pair: Pair) -> int:
    """Positions at which the answers' tokens differ; one that only one answer has counts."""
    plain, dart = pair.plain.token_ids, pair.dart.token_ids
    return abs(len(plain) - len(dart)) + sum(a != b for a, b in zip(plain, dart, strict=False))


def summarize(pairs: Sequence[Pair]) -> Summary:
    """Sums and means over at least one pair."""
    plain, dart = [pair.plain for pair in pairs], [pair.dart for pair in pairs]
    differences = tuple(found for pair in pairs if (found := first_difference(pair)) is not None)
    ledgers = [answer.ledger for answer in dart]
    rounds = sum(ledger.dart_rounds for ledger in ledgers)
    passes = rounds + sum(ledger.plain_steps for ledger in ledgers)
    plain_speed, dart_speed = request_speed(plain), request_speed(dart)
    plain_decode, dart_decode = decode_speed(plain), decode_speed(dart)
    plain_steps = sum(max(len(answer.token_ids) - 1, 0) for answer in plain)
    ratios = [
        ratio
        for pair in pairs
        if (ratio := _divide(request_speed([pair.dart]), request_speed([pair.plain]))) is not None
    ]
    return Summary(
        identical=not differences,
        differing_tokens=sum(differing_tokens(pair) for pair in pairs),
        prompts=len(pairs),
        plain_tokens=sum(len(answer.token_ids) for answer in plain),
        dart_tokens=sum(len(answer.token_ids) for answer in dart),
        plain_tokens_per_s=plain_speed,
        dart_tokens_per_s=dart_speed,
        speedup=_divide(dart_speed, plain_speed),
        median_speedup=statistics.median(ratios) if ratios else None,
        plain_decode_tokens_per_s=plain_decode,
        dart_decode_tokens_per_s=dart_decode,
        decode_speedup=_divide(dart_decode, plain_decode),
        plain_ttft_ms=median_ttft_ms(plain),
        dart_ttft_ms=median_ttft_ms(dart),
        mean_committed=_divide(sum(ledger.dart_committed for ledger in ledgers), rounds),
        mean_accepted=_divide(sum(ledger.accepted for ledger in ledgers), rounds),
        dart_rounds=rounds,
        plain_steps=passes - rounds,
        nodes_offered=sum(ledger.nodes_offered for ledger in ledgers),
        nodes_verified=sum(ledger.nodes_verified for ledger in ledgers),
        chain_fallbacks=sum(ledger.chain_fallbacks for ledger in ledgers),
        t_draft_ms=_divide(sum(ledger.draft_ms for ledger in ledgers), passes),
        t_search_ms=_divide(sum(ledger.search_ms for ledger in ledgers), passes),
        t_verify_ms=_divide(sum(ledger.verify_ms for ledger in ledgers), passes),
        t_wait_ms=_divide(sum(ledger.wait_ms for ledger in ledgers), passes),
        t_other_ms=_divide(sum(ledger.other_ms for ledger in ledgers), passes),
        t_plain_step_ms=_divide(sum(answer.ledger.decode_ms for answer in plain), plain_steps),
        differences=differences,
    )


def request_speed(answers: Sequence[Answer]) -> float | None:
    """Tokens per second of whole requests, by the client's clock: sum of tokens over sum of seconds."""
    return _divide(sum(len(answer.token_ids) for answer in answers), sum(answer.total_s for answer in answers))


def decode_speed(answers: Sequence[Answer]) -> float | None:
    """Tokens after the first per second between the first and the last, by the gateway's clock."""
    tokens = sum(max(len(answer.token_ids) - 1, 0) for answer in answers)
    return _divide(tokens, sum(answer.decode_s for answer in answers))


def median_ttft_ms(answers: Sequence[Answer]) -> float:
    """Median time to the first token by the client's clock, milliseconds."""
    return 1000.0 * statistics.median(answer.ttft_s for answer in answers)


def _divide(numerator: float | None, denominator: float | None) -> float | None:
    return numerator / denominator if numerator is not None and denominator else None


def _at(values: Sequence[T], index: int) -> T | None:
    return values[index] if index < len(values) else None
