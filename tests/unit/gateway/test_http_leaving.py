"""HTTP clients that go away or do not read: their sessions are freed, their work stops."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from typing import Any

import pytest

from tests.fakes import FakeNgram, FakeVerifier
from tests.unit.gateway.conftest import StackMaker, until
from tests.unit.gateway.http_client import MESSAGES, http_stack
from tests.unit.gateway.test_many import settled


@pytest.mark.parametrize("n", [1, 4])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("mode", ["plain", "dart"])
async def test_a_client_that_goes_away_frees_its_sessions(stack: StackMaker, stream: bool, n: int, mode: str) -> None:
    verifier = FakeVerifier(context_length=100_000)
    verifier.step_seconds = 0.005
    async with http_stack(stack, [verifier], [FakeNgram()]) as (s, client):
        wanted: dict[str, Any] = {"model": "toy", "messages": MESSAGES, "n": n, "max_tokens": 50_000}
        asking = asyncio.create_task(reading(client, {**wanted, "extra_body": {"mode": mode}}, stream))
        await until(lambda: len(verifier.opens) == n and verifier.tokens_made > 10 * n)
        assert s.gateway.generation.stats.totals().running == n
        asking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asking
        await until(lambda: s.gateway.generation.open_requests == 0)
        await until(lambda: not verifier.sessions)
        assert s.gateway.generation.stats.totals().failures == {"CANCELLED": n}
        assert s.gateway.generation.stats.totals().running == 0


async def reading(client: Any, wanted: dict[str, Any], stream: bool) -> None:
    answer = await client.chat.completions.create(**wanted, stream=stream)
    if stream:
        async for _ in answer:
            pass


async def test_a_client_that_goes_away_before_the_first_token(stack: StackMaker) -> None:
    verifier = FakeVerifier()
    verifier.hang_after_events = 0
    async with http_stack(stack, [verifier]) as (s, client):
        for stream in (False, True):
            asking = asyncio.create_task(reading(client, {"model": "toy", "messages": MESSAGES}, stream))
            await until(lambda: len(verifier.sessions) == 1)
            assert s.gateway.generation.stats.totals().waiting == 1
            asking.cancel()
            await until(lambda: not verifier.sessions and not s.gateway.generation.open_requests)
        assert s.gateway.generation.stats.totals().waiting == 0


async def test_a_client_that_does_not_read_stops_its_own_work(stack: StackMaker) -> None:
    # Its name is in every event, and many of them are needed to fill what kernels buffer on a connection.
    verifier = FakeVerifier(context_length=100_000, model="toy" * 5_000)
    async with http_stack(stack, [verifier]) as (s, _):
        host, _, port = s.gateway.http.removeprefix("http://").rpartition(":")
        body = {"prompt": "hello", "max_tokens": 50_000, "stream": True, "mode": "plain", "logprobs": 0}
        raw = json.dumps(body).encode()
        with socket.socket() as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.setblocking(False)
            await asyncio.get_running_loop().sock_connect(connection, (host, int(port)))
            head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(raw)}\r\n\r\n"
            await asyncio.get_running_loop().sock_sendall(connection, head.encode() + raw)
            await until(lambda: verifier.tokens_made > 100)
            made = await settled(verifier)
            assert made < 5_000
            assert s.gateway.generation.open_requests == 1
        await until(lambda: not verifier.sessions and not s.gateway.generation.open_requests)
