"""Compiled loops where they can be had; what uses them knows another way."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

log = logging.getLogger(__name__)


def loop_or_none(make: Callable[[], Any], what: str) -> Any:
    """What `make`, which imports its loop, gives; None without numba, or when it cannot compile it here.

    what: the beginning of a sentence that says what is done more slowly then.
    """
    try:
        return make()
    except ImportError:
        return None
    except Exception as error:  # a compiler that does not know this processor
        log.warning("%s without compiled loops: %s: %s", what, type(error).__name__, error)
        return None
