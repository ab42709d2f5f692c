"""Processes of the product under measurement: their start, their memory, and neighbours that disturb them."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import click
import numpy as np
import psutil

ROOT = Path(__file__).parent.parent
MEGABYTE = 1 << 20
_HOG_MEGABYTES = 256


class PeakMemory(threading.Thread):
    """Samples the resident memory of a process and its children until it ends or `stop` is called, in bytes."""

    def __init__(self, pid: int, interval_s: float = 0.05):
        super().__init__(daemon=True)
        self._process = psutil.Process(pid)
        self._interval = interval_s
        self._stop_wanted = threading.Event()
        self.samples: list[int] = []

    def run(self) -> None:
        while not self._stop_wanted.wait(self._interval):
            try:
                family = [self._process, *self._process.children(recursive=True)]
                self.samples.append(sum(resident(process) for process in family))
            except psutil.NoSuchProcess:
                return

    def stop(self) -> int:
        """The most that was seen."""
        self._stop_wanted.set()
        self.join()
        return max(self.samples, default=0)


def resident(process: psutil.Process) -> int:
    """Resident bytes of a process, files that it maps included; 0 when it has ended."""
    try:
        return int(process.memory_info().rss)
    except psutil.NoSuchProcess:
        return 0


def command(*arguments: str) -> list[str]:
    """The `dartspec` command of this checkout."""
    return [sys.executable, "-m", "dartspec.cli.main", *arguments]


@dataclass(frozen=True)
class Service:
    """A running ngram service: its addresses in the order of --listen, and the seconds until it was ready."""

    process: psutil.Process
    addresses: list[str]
    ready_s: float


@contextmanager
def service(indexes: Sequence[Path], listen: Sequence[str], *options: str) -> Iterator[Service]:
    """Start an ngram service and wait until it says that it is ready; it is stopped at the end."""
    arguments = [part for index in indexes for part in ("--index", str(index))]
    arguments += [part for address in listen for part in ("--listen", address)]
    start = time.perf_counter()
    with subprocess.Popen(
        command("ngram", "serve", *arguments, *options), cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            line = process.stdout.readline() if process.stdout else ""
            ready, _, addresses = line.partition(" ready on ")
            if not addresses:
                raise click.ClickException(f"the service did not start, it said {ready!r}; its errors are above")
            yield Service(psutil.Process(process.pid), addresses.split(), time.perf_counter() - start)
        finally:
            process.terminate()
            process.wait(timeout=60)


def hog_memory(seconds: float) -> None:
    """Copy memory from one place to another for a while."""
    source = np.ones(_HOG_MEGABYTES << 17, np.float64)
    target = np.empty_like(source)
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        np.copyto(target, source)


@contextmanager
def memory_hog(seconds: float) -> Iterator[None]:
    """Another process that uses what memory bandwidth it gets, for at most so long."""
    code = f"from bench.index_process import hog_memory; hog_memory({seconds})"
    with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT) as process:
        try:
            yield
        finally:
            process.kill()
