"""What is being done, for whoever waits: one line a task, redrawn on a terminal, plain lines elsewhere."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TextIO

REDRAW_SECONDS = 0.1
SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
NAME_WIDTH = 12


@dataclass
class _Task:
    name: str
    note: str
    started: float = field(default_factory=time.monotonic)
    seconds: float | None = None  # set when it is done
    mark: str = " "


class Progress:
    """Lines on `stream`. Use as an async context manager; it redraws as long as it is open.

    What is said of a task that has no line, because none began or the block has ended, is dropped.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._live = self._stream.isatty()
        self._tasks: dict[str, _Task] = {}
        self._drawn = 0
        self._redraw: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Progress:
        if self._live:
            self._redraw = asyncio.create_task(self._redraw_forever())
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        if self._redraw is not None:
            self._redraw.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._redraw
            self._draw()
        self._drawn = 0
        self._tasks.clear()

    def start(self, name: str, note: str = "starting") -> None:
        """A task begins."""
        self._tasks[name] = _Task(name, note)
        if not self._live:
            self._write(f"{name}: {note}")

    def note(self, name: str, text: str, passing: bool = False) -> None:
        """What the task does now; ``passing`` notes are for terminals only."""
        task = self._tasks.get(name)
        if task is None:  # a service that is being stopped may still write after the lines are gone
            return
        task.note = text
        if not self._live and not passing:
            self._write(f"{name}: {text}")

    def done(self, name: str, note: str = "ready") -> None:
        """The task ended well."""
        self._end(name, note, "✓")

    def failed(self, name: str, note: str = "failed", log_tail: Sequence[str] = ()) -> None:
        """The task ended badly; ``log_tail`` is shown where notes have not been printed already."""
        if self._live:
            for line in log_tail:
                self.say(f"{name}: {line}")
        self._end(name, note, "✗")

    def say(self, text: str) -> None:
        """A line of its own, above the tasks on a terminal."""
        self._erase()
        self._write(text)
        if self._live:
            self._draw()

    def _end(self, name: str, note: str, mark: str) -> None:
        task = self._tasks.get(name)
        if task is None:
            return
        task.seconds, task.note, task.mark = time.monotonic() - task.started, note, mark
        if not self._live:
            self._write(f"{name}: {note} after {task.seconds:.1f} s")

    async def _redraw_forever(self) -> None:
        while True:
            self._draw()
            await asyncio.sleep(REDRAW_SECONDS)

    def _draw(self) -> None:
        self._erase()
        width = shutil.get_terminal_size().columns - 1
        spin = SPINNER[int(time.monotonic() / REDRAW_SECONDS) % len(SPINNER)]
        for task in self._tasks.values():
            seconds = task.seconds if task.seconds is not None else time.monotonic() - task.started
            mark = task.mark if task.seconds is not None else spin
            self._write(f"{mark} {task.name:<{NAME_WIDTH}} {seconds:6.1f} s  {task.note}"[:width])
        self._drawn = len(self._tasks)

    def _erase(self) -> None:
        if self._drawn:
            self._stream.write(f"\x1b[{self._drawn}A\x1b[J")
            self._drawn = 0

    def _write(self, text: str) -> None:
        self._stream.write(text + "\n")
        self._stream.flush()
