"""The API key that this process shows to gateways: one variable, so that keys do not stand in process lists."""

from __future__ import annotations

import os

VARIABLE = "DARTSPEC_API_KEY"


def credentials() -> tuple[tuple[str, str], ...]:
    """Metadata for calls to a gateway; empty without a key."""
    key = os.environ.get(VARIABLE, "")
    return (("authorization", f"Bearer {key}"),) if key else ()
