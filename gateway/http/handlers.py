"""What each path does."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from dartspec.gateway.http.answers import Writer
from dartspec.gateway.http.dialects import ChatDialect, Dialect, TextDialect
from dartspec.gateway.http.errors import error_body
from dartspec.gateway.http.fields import Fields, parse
from dartspec.gateway.http.headers import TRACE, route_from_headers, time_left_from_headers
from dartspec.gateway.http.merge import merged
from dartspec.gateway.served import ServedModel
from dartspec.gateway.service import Generation
from dartspec.services.common.errors import DartspecError, InternalError, NotFound

log = logging.getLogger(__name__)

CLIENT: web.RequestKey[str] = web.RequestKey("client", str)  # name of the caller's API key
LONG_BODY = 256 * 1024  # longer ones are parsed beside the event loop
STREAM_HEADERS = {"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache"}


class Handlers:
    """Converts, calls, converts. ``models`` gives what is served now, ``ready`` whether a verifier can be used."""

    def __init__(
        self,
        generation: Generation,
        models: Callable[[], list[ServedModel]],
        ready: Callable[[], bool],
        metrics: CollectorRegistry,
    ) -> None:
        self._generation = generation
        self._models = models
        self._ready = ready
        self._metrics = metrics
        self._started = int(time.time())

    @property
    def routes(self) -> list[web.RouteDef]:
        """Paths and methods."""
        return [
            web.post("/v1/chat/completions", self._answering(ChatDialect())),
            web.post("/v1/completions", self._answering(TextDialect())),
            web.get("/v1/models", self._list_models),
            web.get("/v1/models/{name:.+}", self._one_model),
            web.get("/metrics", self._show_metrics),
            web.get("/healthz", self._alive),
            web.get("/readyz", self._can_serve),
        ]

    def _answering(self, dialect: Dialect) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        async def answer(request: web.Request) -> web.StreamResponse:
            body = await request.read()
            values = await asyncio.to_thread(parse, body) if len(body) > LONG_BODY else parse(body)
            wanted = dialect.read(Fields(values))
            client, time_left = request[CLIENT], time_left_from_headers(request.headers)
            route, trace = route_from_headers(request.headers), request.headers.get(TRACE, "")
            requests = [replace(each, route=route, traceparent=trace) for each in wanted.requests]
            answers = [self._generation.generate(each, time_left, client) for each in requests]
            headers = {"x-request-id": wanted.request_id}
            writer = Writer(dialect, wanted, self._generation.model)
            async with aclosing(merged(answers)) as messages:
                if wanted.stream:
                    return await _stream(request, writer.parts(messages), headers)
                return web.json_response(await writer.whole(messages), headers=headers)

        return answer

    async def _list_models(self, request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [self._describe(served) for served in self._models()]})

    async def _one_model(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        for served in self._models():
            if served.model.name == name:
                return web.json_response(self._describe(served))
        raise NotFound(f"model: {name!r} is not served here", field="model")

    def _describe(self, served: ServedModel) -> dict[str, Any]:
        model = served.model
        return {
            "id": model.name,
            "object": "model",
            "created": self._started,
            "owned_by": "dartspec",
            "max_model_len": model.context_length,
            "dartspec": {
                "model_fingerprint": model.fingerprint,
                "tokenizer_fingerprint": model.tokenizer_fingerprint,
                "has_head": served.has_head,
                "ready_replicas": served.ready,
                "replicas": served.replicas,
            },
        }

    async def _show_metrics(self, request: web.Request) -> web.Response:
        return web.Response(body=generate_latest(self._metrics), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def _alive(self, request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _can_serve(self, request: web.Request) -> web.Response:
        if self._ready():
            return web.Response(text="ok\n")
        return web.Response(status=503, text="no verifier is connected\n")


async def _stream(
    request: web.Request, parts: AsyncGenerator[dict[str, Any], None], headers: dict[str, str]
) -> web.StreamResponse:
    """Server-sent events. An error before the first one is raised; one after it is the last event."""
    response = web.StreamResponse(headers={**STREAM_HEADERS, **headers})
    async with aclosing(parts):
        part = await anext(parts)
        await response.prepare(request)
        try:
            await response.write(_event(part))
            async for part in parts:
                await response.write(_event(part))
            await response.write(b"data: [DONE]\n\n")
        except DartspecError as error:
            await response.write(b"event: error\n" + _event(error_body(error)))
        except ConnectionError:
            raise
        except Exception as error:
            log.exception("unexpected error in a stream")
            fault = InternalError(f"{type(error).__name__}: {error}")
            await response.write(b"event: error\n" + _event(error_body(fault)))
    await response.write_eof()
    return response


def _event(data: dict[str, Any]) -> bytes:
    # In ASCII: some clients take U+2028 and the like for the end of a line.
    return b"data: " + json.dumps(data, separators=(",", ":")).encode() + b"\n\n"
