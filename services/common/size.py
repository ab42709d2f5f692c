"""Sizes as people write them: 512M, 1.5G."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

_SIZE = re.compile(r"(\d+(?:\.\d+)?)([KMGT]?)(?:i?B)?", re.IGNORECASE)
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def parse_size(text: str) -> int:
    """``1G`` -> 2^30. Raises ValueError saying what a size looks like."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"must be a size such as 512M or 1.5G (K, M, G, T: powers of 1024), got {text!r}")
    return int(float(match[1]) * _UNITS[match[2].upper()])


def at_least(smallest: str, *, empty: bool = False) -> Callable[[Any], str | None]:
    """A check that a text is a size of at least ``smallest``, or nothing if ``empty``."""

    def check(text: str) -> str | None:
        if empty and not text:
            return None
        try:
            size = parse_size(text)
        except ValueError as error:
            return str(error)
        return None if size >= parse_size(smallest) else f"must be at least {smallest}, got {text}"

    return check
