"""Real processes that know of each other through Redis only, which is then stopped and comes back empty."""

from __future__ import annotations

import asyncio
import dataclasses
import tempfile
from pathlib import Path

from dartspec.cli.client import GatewayClient
from dartspec.cli.process import Program
from dartspec.cli.progress import Progress
from dartspec.cli.request_settings import RequestSettings
from dartspec.cli.services import Services
from dartspec.services.common.channel import open_channel
from dartspec.v1 import gateway_pb2, gateway_pb2_grpc
from tests.unit.gateway.redis_process import redis_process

from .tiny_model import TinyModel

SETTINGS = RequestSettings(max_tokens=30, temperature=0.9, seed=11, raw=True)


async def status(gateway: str) -> gateway_pb2.GetStatusResponse:
    async with open_channel(gateway) as channel:
        stub = gateway_pb2_grpc.AdminServiceStub(channel)
        return await stub.GetStatus(gateway_pb2.GetStatusRequest(), wait_for_ready=True)


async def complete(gateway: str) -> None:
    """Wait until the gateway has both services."""
    async with asyncio.timeout(30):
        while (now := await status(gateway)).ready_replicas + now.ngram_services < 2:
            await asyncio.sleep(0.1)


async def test_services_find_each_other_through_redis(tiny: TinyModel) -> None:
    with redis_process() as redis, tempfile.TemporaryDirectory(prefix="dartspec-") as directory:
        await redis.start()
        sockets = Path(directory)
        registry = ("--registry", redis.url)
        gateway = ("gateway", "serve", "--listen", "127.0.0.1:0", *registry)
        services = Services(Progress())
        try:
            first, *_ = await services.start(Program("gateway", gateway))
            index = ("--listen", f"unix:{sockets}/n.sock", "--index", str(tiny.index))
            await services.start(Program("ngram", ("ngram", "serve", *index, *registry)))
            model = ("--model", str(tiny.model), "--head", str(tiny.head), "--threads", "1")
            await services.start(
                Program("verifier", ("verifier", "serve", "--listen", f"unix:{sockets}/v.sock", *model, *registry))
            )
            await complete(first)
            async with GatewayClient(first) as client:
                plain = await client.answer("hello", dataclasses.replace(SETTINGS, mode="plain"))
                dart = await client.answer("hello", dataclasses.replace(SETTINGS, mode="dart"))
                redis.stop()
                again = await client.answer("hello", dataclasses.replace(SETTINGS, mode="dart"))
            assert plain.token_ids == dart.token_ids == again.token_ids
            assert dart.ledger.search_ms > 0
            await redis.start()
            second, *_ = await services.start(Program("second gateway", gateway))
            await complete(second)
            await complete(first)
        finally:
            await services.stop()
