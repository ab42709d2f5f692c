"""Where load is sent to: a gateway over gRPC, or an OpenAI-style API over HTTP."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Protocol

import grpc

from dartspec.cli.client import build_request
from dartspec.cli.load_plan import Job
from dartspec.cli.load_sample import Sample
from dartspec.cli.request_settings import RequestSettings
from dartspec.services.common.channel import open_channel
from dartspec.services.common.credentials import credentials
from dartspec.services.common.tls import ClientTls
from dartspec.v1 import gateway_pb2, gateway_pb2_grpc


class LoadTarget(Protocol):
    """Answers a job into a sample, errors included. due: the loop's time when it should be sent."""

    async def answer(self, job: Job, sample: Sample, due: float) -> None: ...


@asynccontextmanager
async def open_target(address: str, model: str, temperature: float) -> AsyncIterator[LoadTarget]:
    """ "host:port" and "unix:/path" are gRPC, "http://..." is the URL of an API, with or without /v1."""
    if address.startswith(("http://", "https://")):
        import aiohttp

        base = address.rstrip("/").removesuffix("/v1")
        async with aiohttp.ClientSession(
            base, connector=aiohttp.TCPConnector(limit=0), headers=dict(credentials())
        ) as session:
            yield HttpTarget(session, model or await _only_model(session), temperature)
    else:
        async with open_channel(address, ClientTls.of_environment()) as channel:
            yield GrpcTarget(gateway_pb2_grpc.GatewayServiceStub(channel), model, temperature)


class GrpcTarget:
    """GatewayService."""

    def __init__(self, stub: Any, model: str, temperature: float) -> None:
        self._stub = stub
        self._model = model
        self._temperature = temperature

    async def answer(self, job: Job, sample: Sample, due: float) -> None:
        settings = RequestSettings(max_tokens=job.max_tokens, temperature=self._temperature, mode=job.mode)
        request = build_request(job.prompt.text, settings, self._model)
        try:
            call = self._stub.Generate(request, metadata=(*credentials(), ("dartspec-task", job.task)))
            async for message in call:
                if message.HasField("chunk") and message.chunk.token_ids:
                    sample.chunks.append((_now() - due, len(message.chunk.token_ids)))
                elif message.HasField("finish"):
                    ledger = message.finish.ledger
                    sample.mode_used = gateway_pb2.Mode.Name(ledger.mode).removeprefix("MODE_").lower()
                    sample.dart_rounds, sample.accepted = ledger.dart_rounds, ledger.accepted
                    sample.finished = True
        except grpc.aio.AioRpcError as error:
            sample.error = error.code().name


class HttpTarget:
    """/v1/chat/completions as a stream, with log-probabilities: they tell how many tokens a piece holds."""

    def __init__(self, session: Any, model: str, temperature: float) -> None:
        self._session = session
        self._model = model
        self._temperature = temperature

    async def answer(self, job: Job, sample: Sample, due: float) -> None:
        import aiohttp

        body = {
            "model": self._model,
            "messages": [{"role": "user", "content": job.prompt.text}],
            "max_tokens": job.max_tokens,
            "temperature": self._temperature,
            "stream": True,
            "logprobs": True,
        }
        if job.mode != "auto":
            body["mode"] = job.mode  # our own field; other servers would refuse it
        try:
            async with self._session.post("/v1/chat/completions", json=body) as response:
                if response.status != 200:
                    sample.error = f"HTTP_{response.status}"
                    return
                async for line in response.content:
                    self._take(line.strip(), sample, due)
        except (aiohttp.ClientError, TimeoutError) as error:
            sample.error = type(error).__name__
        else:
            if not sample.finished and not sample.error:
                sample.error = "CUT_OFF"

    def _take(self, line: bytes, sample: Sample, due: float) -> None:
        if line == b"data: [DONE]":
            sample.finished = True
        elif line.startswith(b"data: "):
            part = json.loads(line.removeprefix(b"data: "))
            if "error" in part:
                sample.error = str(part["error"].get("code") or part["error"].get("type") or "ERROR")
            for choice in part.get("choices", ()):
                count = len((choice.get("logprobs") or {}).get("content") or ())
                if count:
                    sample.chunks.append((_now() - due, count))
                sample.mode_used = choice.get("dartspec", {}).get("mode", sample.mode_used)


async def _only_model(session: Any) -> str:
    async with session.get("/v1/models") as response:
        response.raise_for_status()
        return str((await response.json())["data"][0]["id"])


def _now() -> float:
    return asyncio.get_running_loop().time()
