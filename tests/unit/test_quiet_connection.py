"""A connection on which nothing is said for long stays open."""

from __future__ import annotations

import asyncio

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from dartspec.services.common import channel, server
from dartspec.services.common.channel import open_channel
from dartspec.services.common.server import Server

FASTER = 200  # than the real pace of pings, 60 s


async def test_pings_without_data_do_not_end_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    sped_up = [
        (name, value // FASTER if name.endswith("_ms") and "timeout" not in name else value)
        for name, value in channel.GRPC_OPTIONS
    ]
    assert dict(sped_up)["grpc.keepalive_time_ms"] == 300
    for module in (channel, server):
        monkeypatch.setattr(module, "GRPC_OPTIONS", sped_up)
    serving = Server([])
    (address,) = await serving.start(["127.0.0.1:0"])
    await serving.ready()
    async with open_channel(address) as opened:
        call = health_pb2_grpc.HealthStub(opened).Watch(health_pb2.HealthCheckRequest())
        assert (await call.read()).status == health_pb2.HealthCheckResponse.SERVING
        silence = asyncio.create_task(call.read())
        # Some twenty pings: the transport forgives few.
        done, _ = await asyncio.wait([silence], timeout=6)
        assert not done
        silence.cancel()
    await serving.stop(0)
