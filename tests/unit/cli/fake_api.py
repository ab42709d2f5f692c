"""An OpenAI-style API of somebody else, that answers from a script."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

PREFIX = "/api"  # before /v1, as behind some proxies


def event(content: str, tokens: int | None) -> str:
    """A piece of an answer of so many tokens; None leaves their log-probabilities out."""
    shown = None if tokens is None else {"content": [{"token": "x", "logprob": -0.5}] * tokens}
    return "data: " + json.dumps({"choices": [{"index": 0, "delta": {"content": content}, "logprobs": shown}]}) + "\n\n"


DONE = "data: [DONE]\n\n"


@dataclass
class FakeApi:
    """Streams ``events``; keeps the requests. hangs_from: the first request, from 0, that gets none of them."""

    events: Sequence[str] = ()
    status: int = 200
    error: str = ""
    models: Any = field(default_factory=lambda: {"data": [{"id": "theirs"}]})
    hangs_from: int = 1000
    headers: list[Any] = field(default_factory=list)
    bodies: list[dict[str, Any]] = field(default_factory=list)

    async def complete(self, request: web.Request) -> web.StreamResponse:
        self.headers.append(request.headers)
        self.bodies.append(await request.json())
        if self.status != 200:
            return web.Response(status=self.status, text=self.error)
        if len(self.bodies) > self.hangs_from:
            await asyncio.sleep(60)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for line in self.events:
            await response.write(line.encode())
        return response

    async def list_models(self, request: web.Request) -> web.Response:
        return web.json_response(self.models, status=self.status)


@asynccontextmanager
async def serving_api(api: FakeApi) -> AsyncIterator[str]:
    """Its URL without /v1 for as long as the block runs."""
    app = web.Application()
    app.add_routes(
        [
            web.post(f"{PREFIX}/v1/chat/completions", api.complete),
            web.get(f"{PREFIX}/v1/models", api.list_models),
        ]
    )
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}{PREFIX}"
    finally:
        await runner.cleanup()
