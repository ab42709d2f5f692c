"""Ctrl-C and SIGTERM end a command by cancelling it, so that whatever it started is stopped on the way out."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Coroutine
from typing import Any, TypeVar

from dartspec.cli.exit_codes import TERMINATED

T = TypeVar("T")


def run(main: Coroutine[Any, Any, T]) -> T:
    """`asyncio.run`, with SIGTERM handled like Ctrl-C: the first cancels, and the process exits with 143 at the end.

    Ctrl-C raises KeyboardInterrupt, as always, once everything is stopped.
    """
    terminated = False

    async def cancellable() -> T:
        task = asyncio.current_task()
        assert task is not None

        def terminate() -> None:
            nonlocal terminated
            terminated = True
            task.cancel()

        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, terminate)
        return await main

    try:
        return asyncio.run(cancellable())
    except asyncio.CancelledError:
        if not terminated:
            raise
        sys.exit(TERMINATED)
