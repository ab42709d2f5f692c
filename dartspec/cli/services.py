"""The child processes of a stack: started together, watched, stopped in reverse order."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from dartspec.cli.health import wait_until_serving
from dartspec.cli.process import Process, Program
from dartspec.cli.progress import Progress
from dartspec.services.common.errors import DartspecError

LogLine = Callable[[str, str], None]


class Services:
    """Services of one stack. ``on_log`` gets (name, line) of what a ready service writes to stderr."""

    def __init__(self, progress: Progress, on_log: LogLine | None = None) -> None:
        self._progress = progress
        self._on_log = on_log
        self._starting: set[str] = set()
        self._processes: list[Process] = []
        self._lost: list[Process] = []

    async def start(self, program: Program) -> list[str]:
        """Start a service and wait until it serves; returns its addresses. Raises why it did not start."""
        name = program.name
        self._starting.add(name)
        self._progress.start(name)
        process = await Process.start(name, program.argv, lambda line, passing: self._log(name, line, passing))
        self._processes.append(process)
        try:
            addresses = await process.ready()
            await wait_until_serving(addresses[0])
        except DartspecError:
            self._progress.failed(name, log_tail=process.log_tail())
            raise
        self._starting.discard(name)
        self._progress.done(name, f"ready on {' '.join(addresses)}")
        return addresses

    async def complete(self, program: Program, note: str) -> None:
        """Run a program that ends by itself. Raises why it failed."""
        self._starting.add(program.name)
        self._progress.start(program.name, note)
        process = await Process.start(
            program.name, program.argv, lambda line, passing: self._log(program.name, line, passing)
        )
        try:
            if await process.ended() != 0:
                self._progress.failed(program.name, log_tail=process.log_tail())
                raise process.failure("while it was being built")
        finally:
            await process.stop()
        self._progress.done(program.name, "built")

    async def next_failure(self) -> tuple[str, DartspecError]:
        """Wait until another service ends by itself; returns its name and what happened. Each is told once."""
        watched = [process for process in self._processes if process not in self._lost]
        waiting = {asyncio.create_task(process.ended()): process for process in watched}
        try:
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waiting:
                task.cancel()
        lost = waiting[done.pop()]
        self._lost.append(lost)
        return lost.name, lost.failure("while serving")

    async def stop(self) -> None:
        """Stop all, those that use others first, and wait. Nothing survives, even when this is cancelled."""
        try:
            while self._processes:
                await self._processes[-1].stop()
                self._processes.pop()
        finally:
            for process in self._processes:
                process.kill()

    def _log(self, name: str, line: str, passing: bool) -> None:
        if name in self._starting:
            self._progress.note(name, line, passing)
        elif self._on_log is not None and not passing:
            with contextlib.suppress(BrokenPipeError):
                self._on_log(name, line)
