"""Tasks that stand and fall together."""

from __future__ import annotations

import asyncio
from typing import Any

from dartspec.services.common.errors import Unavailable


async def first_to_end(*coroutines: Any) -> None:
    """Run until one ends, stop the others, raise what it raised."""
    tasks = [asyncio.create_task(coroutine) for coroutine in coroutines]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in [task for task in tasks if task in done]:
            if task.cancelled():  # by the transport; ours must not look cancelled for it
                raise Unavailable("cancelled the stream")
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
