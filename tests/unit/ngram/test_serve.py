"""From start to ready to stop: what is answered, reported and logged while indexes are read into memory."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import ngram_index
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from dartspec.services.common.channel import open_channel
from dartspec.services.common.errors import FailedPrecondition
from dartspec.services.ngram import prefault
from dartspec.services.ngram.config import ServeSettings
from dartspec.services.ngram.serve import serve
from dartspec.v1 import ngram_pb2_grpc

from .served import DOCUMENTS, request
from .support import build


class SlowLoading:
    """Stands in for ngram_index.Loading; half way until it is released or stopped."""

    made: list[SlowLoading]

    def __init__(self, path: str, backing: str) -> None:
        self.made.append(self)
        self.progress = (50_000_000, 100_000_000)
        self.finished = False
        self.stopped = False
        self._path = path

    def stop(self) -> None:
        self.stopped = True

    def result(self) -> ngram_index.Index:
        return ngram_index.Index.open(self._path)


@pytest.fixture
def loadings(monkeypatch: pytest.MonkeyPatch) -> list[SlowLoading]:
    SlowLoading.made = []
    monkeypatch.setattr(ngram_index, "Loading", SlowLoading)
    return SlowLoading.made


@pytest.fixture
def settings(tmp_path: Path) -> ServeSettings:
    path = tmp_path / "x.ngx"
    build(path, DOCUMENTS, 3, 20)
    return ServeSettings(index=(str(path),), listen=(f"unix:{tmp_path}/s.sock",))


@asynccontextmanager
async def running(settings: ServeSettings) -> AsyncIterator[asyncio.Task[None]]:
    """The service as a task, from when its socket is there; stopped by SIGTERM."""
    task = asyncio.create_task(serve(settings))
    socket = Path(settings.listen[0].removeprefix("unix:"))
    while not socket.exists() and not task.done():
        await asyncio.sleep(0.01)
    try:
        yield task
    finally:
        if not task.done():
            os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait_for(task, 20)


async def until(condition: object) -> None:
    """Poll until the function is true."""
    assert callable(condition)
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.01)


async def test_ready_comes_after_the_prefault_and_answers_before(
    settings: ServeSettings, loadings: list[SlowLoading], capsys: pytest.CaptureFixture[str]
) -> None:
    async with running(settings), open_channel(settings.listen[0]) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        await until(lambda: loadings)
        assert (
            await health.Check(health_pb2.HealthCheckRequest())
        ).status == health_pb2.HealthCheckResponse.NOT_SERVING
        assert len((await ngram_pb2_grpc.NgramServiceStub(channel).Search(request(3))).trees) == 3
        assert capsys.readouterr().out == ""
        loadings[0].finished = True
        said = ""
        async with asyncio.timeout(20):
            while not said:
                await asyncio.sleep(0.01)
                said = capsys.readouterr().out
        assert said == f"dartspec ngram ready on {settings.listen[0]}\n"
        assert (await health.Check(health_pb2.HealthCheckRequest())).status == health_pb2.HealthCheckResponse.SERVING


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
async def test_a_signal_ends_the_prefault_at_once(
    settings: ServeSettings, loadings: list[SlowLoading], capsys: pytest.CaptureFixture[str], signum: signal.Signals
) -> None:
    async with running(settings) as task:
        await until(lambda: loadings)
        start = time.monotonic()
        os.kill(os.getpid(), signum)
        await asyncio.wait_for(task, 20)
        assert time.monotonic() - start < 5
    assert loadings[0].stopped
    assert capsys.readouterr().out == ""
    assert not Path(settings.listen[0].removeprefix("unix:")).exists()


async def test_progress_is_logged_where_there_is_no_terminal(
    settings: ServeSettings,
    loadings: list[SlowLoading],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(prefault, "LOG_SECONDS", 0.05)
    caplog.set_level(logging.INFO)
    loading = asyncio.create_task(prefault.load(settings.index[0], "populate"))
    await until(lambda: "x.ngx: 50.0 of 100.0 MB in memory after" in caplog.text)
    assert "MB/s" in caplog.text
    loading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await loading
    assert loadings[0].stopped


async def test_a_file_that_becomes_unreadable_while_it_is_loaded_ends_the_start(
    settings: ServeSettings, loadings: list[SlowLoading]
) -> None:
    async def start() -> None:
        async with running(settings) as task:
            await until(lambda: loadings)
            Path(settings.index[0]).unlink()
            loadings[0].finished = True
            await asyncio.wait([task], timeout=20)

    with pytest.raises(FailedPrecondition, match=r"x\.ngx"):
        await start()
