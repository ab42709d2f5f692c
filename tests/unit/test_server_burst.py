"""A burst of calls is answered, not dropped by the transport."""

from __future__ import annotations

import asyncio

from grpc_health.v1 import health_pb2, health_pb2_grpc

from dartspec.services.common.channel import open_channel
from dartspec.services.common.server import Server


async def test_three_thousand_calls_at_once_are_all_answered() -> None:
    server = Server([])
    (address,) = await server.start(["127.0.0.1:0"])
    await server.ready()
    async with open_channel(address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        answers = await asyncio.gather(*[stub.Check(health_pb2.HealthCheckRequest()) for _ in range(3000)])
    await server.stop(0)
    assert {answer.status for answer in answers} == {health_pb2.HealthCheckResponse.SERVING}
