"""What the headers of a request say about where it shall run, what it is and how long it may take."""

from __future__ import annotations

import math
from collections.abc import Mapping

from dartspec.gateway.route import Route, route_from_metadata
from dartspec.services.common.errors import InvalidArgument

PREFIX = "x-"  # before the names that gRPC metadata has
TIMEOUT = "x-dartspec-timeout"
TRACE = "traceparent"


def route_from_headers(headers: Mapping[str, str]) -> Route:
    """x-dartspec-routing, -replica and -task. Raises InvalidArgument as `route_from_metadata` does."""
    return route_from_metadata((name.lower().removeprefix(PREFIX), value) for name, value in headers.items())


def time_left_from_headers(headers: Mapping[str, str]) -> float | None:
    """x-dartspec-timeout, seconds from now to the end of the answer; None without it.

    Raises InvalidArgument for anything but a number above 0.
    """
    value = headers.get(TIMEOUT)
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise InvalidArgument(TIMEOUT, f"must be seconds, more than 0, got {value[:64]!r}")
    return seconds
