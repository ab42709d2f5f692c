"""Clients of the HTTP API of a gateway in front of fakes."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
from openai import AsyncOpenAI

from tests.unit.gateway.conftest import Stack, StackMaker

HTTP = "127.0.0.1:0"
MESSAGES: Any = [{"role": "user", "content": "hello"}]


@asynccontextmanager
async def http_stack(stack: StackMaker, *services: Any, **settings: Any) -> AsyncIterator[tuple[Stack, AsyncOpenAI]]:
    """A stack with the HTTP API, and the official client for it, which does not try again."""
    async with (
        stack(*services, http_listen=HTTP, **settings) as running,
        AsyncOpenAI(base_url=f"{running.gateway.http}/v1", api_key="none", max_retries=0) as client,
    ):
        yield running, client


async def send(
    url: str, body: Any = None, *, method: str = "POST", headers: dict[str, str] | None = None
) -> tuple[int, dict[str, Any], Any]:
    """(status, JSON body, headers) of one request; ``body`` is sent as it is if it is bytes, as JSON otherwise."""
    data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
    async with aiohttp.ClientSession() as session, session.request(method, url, data=data, headers=headers) as reply:
        return reply.status, await reply.json(), reply.headers


async def get_text(url: str) -> tuple[int, str]:
    """(status, body) of a GET."""
    async with aiohttp.ClientSession() as session, session.get(url) as reply:
        return reply.status, await reply.text()
