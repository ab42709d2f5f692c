"""One service as a child process: its ready line, its last words, and its end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from dartspec.cli.exit_codes import WRONG_USE
from dartspec.services.common.errors import DartspecError, FailedPrecondition, InternalError

# A service lets calls end for 5 seconds at most (common.server.DRAIN_SECONDS); a verifier drains for longer, but the
# gateway of its stack is gone by then, and every session with it.
STOP_SECONDS = 10.0
KEPT_LINES = 40
CHUNK_BYTES = 1 << 16
LAST_OUTPUT_SECONDS = 1.0

# A line, and whether the next one is meant to overwrite it, as those of progress bars are.
OnLine = Callable[[str, bool], None]

_READY = re.compile(r"^dartspec \S+ ready on (.+)$")


@dataclass(frozen=True)
class Program:
    """What to run: the name that people see, and the arguments of `dartspec`."""

    name: str
    arguments: tuple[str, ...]

    @property
    def argv(self) -> list[str]:
        """The whole command line; the process ends when the one that makes this list does."""
        return [sys.executable, "-m", "dartspec.cli.child", str(os.getpid()), *self.arguments]


class Process:
    """A running service. Create with `start`, from the main thread: a child ends with the thread that started it."""

    def __init__(self, name: str, child: asyncio.subprocess.Process, on_line: OnLine) -> None:
        self.name = name
        self._child = child
        self._on_line = on_line
        self._last_lines: deque[str] = deque(maxlen=KEPT_LINES)
        self._addresses: asyncio.Future[list[str]] = asyncio.get_running_loop().create_future()
        self._readers = [asyncio.create_task(self._read_stdout()), asyncio.create_task(self._read_stderr())]

    @classmethod
    async def start(cls, name: str, argv: Sequence[str], on_line: OnLine) -> Process:
        """Start `argv` in a process group of its own; `on_line` gets what it writes to stderr."""
        pipe = asyncio.subprocess.PIPE
        child = await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=pipe,
            stderr=pipe,
            process_group=0,  # Ctrl-C reaches only us; we stop the services in order
        )
        return cls(name, child, on_line)

    @property
    def pid(self) -> int:
        """Process id."""
        return self._child.pid

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return self._child.returncode is None

    async def ready(self) -> list[str]:
        """The addresses of its ready line. Raises what `failure` says when the process ends before that."""
        ended = asyncio.create_task(self.ended())
        try:
            waiting: list[asyncio.Future[Any]] = [self._addresses, ended]
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            ended.cancel()
        if self._addresses.done():
            return self._addresses.result()
        raise self.failure("while starting")

    async def ended(self) -> int:
        """Wait for the end and for its last output; returns the exit code, negative for a signal."""
        code = await self._child.wait()
        # A process that the service started may hold the pipes open for longer.
        await asyncio.wait(self._readers, timeout=LAST_OUTPUT_SECONDS)
        return code

    def failure(self, when: str) -> DartspecError:
        """What an end that nobody asked for means, with the lines of stderr that matter."""
        code = self._child.returncode
        assert code is not None, "failure() of a process that runs"
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"stopped (exit code {code})"
        kind = FailedPrecondition if code == WRONG_USE else InternalError
        return kind(f"{self.name} {how} {when}{self._last_words()}")

    async def stop(self, grace: float = STOP_SECONDS) -> int:
        """SIGTERM, and SIGKILL to whatever is left of its group after `grace` seconds. Returns the exit code."""
        if self.running:
            self._signal(signal.SIGTERM)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(self._child.wait()), grace)
        self.kill()
        return await self.ended()

    def kill(self) -> None:
        """SIGKILL to its whole group, so that nothing that the service started outlives it."""
        self._signal(signal.SIGKILL)

    def _signal(self, signum: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._child.pid, signum)

    def log_tail(self) -> list[str]:
        """The last lines that it wrote to stderr; none when it ended with an `error: ` line, which says it all."""
        return [] if self._error_lines() else list(self._last_lines)

    def _error_lines(self) -> list[str]:
        return [line.removeprefix("error: ") for line in self._last_lines if line.startswith("error: ")]

    def _last_words(self) -> str:
        if not self._last_lines:
            return ", without a word on stderr"
        said = self._error_lines()
        if not said and (self._child.returncode or 0) >= 0:
            # It crashed: the last line of a traceback says what happened, and is not indented. What was logged before
            # a signal is no reason.
            said = [line for line in self._last_lines if not line.startswith(" ")]
        return f": {said[-1]}" if said else ""

    async def _read_stdout(self) -> None:
        async for line, _ in _lines(self._child.stdout):
            match = _READY.match(line)
            if match and not self._addresses.done():
                self._addresses.set_result(match[1].split())

    async def _read_stderr(self) -> None:
        async for line, passing in _lines(self._child.stderr):
            if not passing:
                self._last_lines.append(line)
            self._on_line(line, passing)


async def _lines(stream: asyncio.StreamReader | None) -> AsyncIterator[tuple[str, bool]]:
    """Lines that are not empty, and whether a carriage return ended them; progress bars write little else."""
    assert stream is not None
    rest = b""
    while chunk := await stream.read(CHUNK_BYTES):
        *complete, rest = re.split(rb"(?<=[\r\n])", rest + chunk)
        for raw in complete:
            if line := raw.decode(errors="replace").rstrip():
                yield line, raw.endswith(b"\r")
    if line := rest.decode(errors="replace").rstrip():
        yield line, False
