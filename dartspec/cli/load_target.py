"""Where load is sent to: a gateway over gRPC, or an OpenAI-style API over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Protocol

import grpc

from dartspec.cli.client import build_request
from dartspec.cli.load_plan import Job
from dartspec.cli.load_sample import CUT_OFF, Sample
from dartspec.cli.request_settings import RequestSettings
from dartspec.services.common.channel import error_from_rpc, open_channel
from dartspec.services.common.credentials import credentials
from dartspec.services.common.errors import InvalidArgument
from dartspec.services.common.tls import ClientTls
from dartspec.v1 import gateway_pb2, gateway_pb2_grpc


class LoadTarget(Protocol):
    """Answers a job into a sample, errors included. due: the loop's time when it should be sent."""

    async def answer(self, job: Job, sample: Sample, due: float) -> None: ...


@asynccontextmanager
async def open_target(address: str, model: str, temperature: float) -> AsyncIterator[LoadTarget]:
    """ "host:port" and "unix:/path" are gRPC, "http://..." is the URL of an API, with or without /v1."""
    if address.startswith(("http://", "https://")):
        from dartspec.cli.load_http import open_http  # aiohttp is an extra

        async with open_http(address, model, temperature) as target:
            yield target
    elif not address:
        raise InvalidArgument("--target", "must be host:port, unix:/path or a URL, got ''")
    else:
        async with open_channel(address, ClientTls.of_environment()) as channel:
            yield GrpcTarget(gateway_pb2_grpc.GatewayServiceStub(channel), address, model, temperature)


class GrpcTarget:
    """GatewayService."""

    def __init__(self, stub: Any, address: str, model: str, temperature: float) -> None:
        self._stub = stub
        self._address = address
        self._model = model
        self._temperature = temperature

    async def answer(self, job: Job, sample: Sample, due: float) -> None:
        now = asyncio.get_running_loop().time
        settings = RequestSettings(max_tokens=job.max_tokens, temperature=self._temperature, mode=job.mode)
        request = build_request(job.prompt.text, settings, self._model)
        try:
            call = self._stub.Generate(request, metadata=(*credentials(), ("dartspec-task", job.task)))
            async for message in call:
                if message.HasField("chunk") and message.chunk.token_ids:
                    sample.chunks.append((now() - due, len(message.chunk.token_ids)))
                elif message.HasField("finish"):
                    ledger = message.finish.ledger
                    sample.mode_used = gateway_pb2.Mode.Name(ledger.mode).removeprefix("MODE_").lower()
                    sample.dart_rounds, sample.accepted = ledger.dart_rounds, ledger.accepted
                    sample.finished = True
        except grpc.aio.AioRpcError as error:
            sample.fail(error.code().name, error_from_rpc(error, f"gateway {self._address}").message)
        else:
            if not sample.finished:
                sample.fail(*CUT_OFF)
