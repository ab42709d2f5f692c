"""Ctrl-C in the middle of `dartspec bench serve`."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.unit.cli.fake_api import DONE, FakeApi, event, serving_api
from tests.unit.cli.fake_gateway import FakeGateway, serving


class HangingGateway(FakeGateway):
    """Answers two requests, and not those after them."""

    async def Generate(self, request: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802
        self.hangs = len(self.requests) >= 2
        async for message in super().Generate(request, context):
            yield message


Answering = tuple[str, Callable[[], int]]  # where, and how many requests have come


@asynccontextmanager
async def over_grpc() -> AsyncIterator[Answering]:
    gateway = HangingGateway()
    async with serving(gateway) as address:
        yield address, lambda: len(gateway.requests)


@asynccontextmanager
async def over_http() -> AsyncIterator[Answering]:
    api = FakeApi([event("ab", 2), event("cde", 3), DONE], hangs_from=2)
    async with serving_api(api) as url:
        yield url, lambda: len(api.bodies)


@pytest.mark.parametrize("way", [over_grpc, over_http])
async def test_what_was_measured_so_far_is_said(tmp_path: Path, way: Callable[[], Any]) -> None:
    file = tmp_path / "q.jsonl"
    file.write_text('{"prompt": "Hi"}\n')
    async with way() as (target, requests):
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "dartspec.cli.main", "bench", "serve", "--target", target),
            *("--prompts", str(file), "--requests", "50", "--clients", "1", "--tokens", "5"),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        async with asyncio.timeout(30):
            while requests() < 3:  # one client: the answers before it are whole
                await asyncio.sleep(0.01)
        process.send_signal(signal.SIGINT)
        out, err = await process.communicate()
    assert process.returncode == 130, err
    found = json.loads(out.splitlines()[-1])
    assert found["interrupted"]
    figures = found["all"]
    assert (figures["requests"], figures["finished"], figures["tokens"], figures["errors"]) == (3, 2, 10, {})
    assert figures["ttft_ms"]["p50"] is not None
    heading, row, total = err.decode().splitlines()  # and no traceback
    done, failed = heading.split().index("done"), heading.split().index("failed")
    assert (row.split()[done], row.split()[failed]) == ("2", "0")
    assert total.startswith("all")
