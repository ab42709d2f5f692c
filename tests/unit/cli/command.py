"""Runs the real command as a process."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import NamedTuple


class Result(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str


async def dartspec(*arguments: str, module: str = "dartspec.cli.main", **environment: str) -> Result:
    """`dartspec ARGUMENTS`, or another module in its place, without the caller's own DARTSPEC_* variables."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("DARTSPEC_")}
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        module,
        *arguments,
        env={**inherited, **environment},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    assert process.returncode is not None
    return Result(process.returncode, out.decode(), err.decode())
