"""Whoever watches a service's health hears of every change, and of a drain before calls end."""

from __future__ import annotations

from grpc_health.v1 import health_pb2, health_pb2_grpc

from dartspec.services.common.channel import open_channel
from dartspec.services.common.server import Server

NAME = "dartspec.v1.GatewayService"


async def test_watch_follows_a_server_from_start_to_drain() -> None:
    server = Server([NAME])
    (address,) = await server.start(["127.0.0.1:0"])
    async with open_channel(address) as channel:
        call = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(service=NAME))
        seen = [(await call.read()).status]
        await server.ready()
        seen.append((await call.read()).status)
        await server.not_ready()
        seen.append((await call.read()).status)
        status = health_pb2.HealthCheckResponse
        assert seen == [status.NOT_SERVING, status.SERVING, status.NOT_SERVING]
        call.cancel()
    await server.stop(0)
