"""An ngram service as a process."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def serving(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A service process and its first line on stdout, or what it said on stderr when it ended."""
    argv = [sys.executable, "-m", "dartspec.cli.main", "ngram", "serve", *arguments]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("DARTSPEC_")}
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    assert process.stdout
    assert process.stderr
    try:
        ready, _, _ = select.select([process.stdout], [], [], 60)
        line = process.stdout.readline() if ready else ""
        yield process, line or process.stderr.read()
    finally:
        process.kill()
        process.communicate()


class Log:
    """What a process writes to stderr, read as it comes."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stderr
        self._descriptor = process.stderr.fileno()
        self.text = ""

    def wait_for(self, words: str, times: int = 1, seconds: float = 30) -> None:
        """Return when the words have come so often."""
        deadline = time.monotonic() + seconds
        while self.text.count(words) < times:
            ready, _, _ = select.select([self._descriptor], [], [], max(deadline - time.monotonic(), 0))
            assert ready, f"waited for {words!r}, got {self.text}"
            chunk = os.read(self._descriptor, 1 << 16)
            assert chunk, f"ended before {words!r}: {self.text}"
            self.text += chunk.decode()
