"""A redis-server of a test's own, on a free port and without files."""

from __future__ import annotations

import asyncio
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest


class RedisProcess:
    """Stopped and started at will; it comes back empty."""

    def __init__(self) -> None:
        pytest.importorskip("redis", reason="the package redis is not installed (the redis extra)")
        program = shutil.which("redis-server")
        if program is None:
            pytest.skip("redis-server is not installed")
        self._program: str = program
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self._process: subprocess.Popen[bytes] | None = None

    async def start(self) -> None:
        arguments = ["--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
        self._process = subprocess.Popen([self._program, *arguments], stdout=subprocess.DEVNULL)
        async with asyncio.timeout(20):
            while True:
                try:
                    _, writer = await asyncio.open_connection("127.0.0.1", self.port)
                except OSError:
                    await asyncio.sleep(0.02)
                    continue
                writer.close()
                return

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid


@contextmanager
def redis_process() -> Iterator[RedisProcess]:
    """Not started yet; stopped in the end."""
    process = RedisProcess()
    try:
        yield process
    finally:
        process.stop()
