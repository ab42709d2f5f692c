"""Which n-grams an index leaves out, as the command line says it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dartspec.services.common.errors import InvalidArgument


@dataclass(frozen=True)
class Pruning:
    """min_counts: smallest count kept by length, () for all. renormalise: counts become sums of what is kept.

    target_bytes: raise the thresholds, the longest n-grams first, until the file has at most so many; None: no limit.
    """

    min_counts: tuple[int, ...] = ()
    renormalise: bool = False
    target_bytes: int | None = None


def parse_counts(text: str) -> tuple[int, ...]:
    """``1,1,2`` -> (1, 1, 2). Raises InvalidArgument."""
    words = [word.strip() for word in text.split(",")] if text.strip() else []
    if not all(word.isdecimal() and word.isascii() for word in words):
        raise InvalidArgument("--prune", f"must be counts by length such as 1,1,2, got {text!r}")
    return tuple(map(int, words))


def describe_kept(kept: Sequence[int]) -> str:
    """What was left out, in words; "" when nothing was."""
    rare = [f"{length}-grams seen less than {count} times" for length, count in enumerate(kept, start=1) if count > 1]
    return f"without {', '.join(rare)}" if rare else ""
