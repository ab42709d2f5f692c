"""The gRPC health of a service, as a client sees it."""

from __future__ import annotations

import asyncio

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from dartspec.services.common.channel import error_from_rpc, open_channel
from dartspec.services.common.errors import Unavailable

CALL_SECONDS = 5.0
POLL_SECONDS = 0.05
SERVING_SECONDS = 10.0
# A service that is killed while it is asked ends the call as CANCELLED; what is started after it may serve.
NOT_YET = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED)


async def wait_until_serving(address: str, seconds: float = SERVING_SECONDS) -> None:
    """Return when the service reports SERVING. Raises Unavailable when it has not done so after ``seconds``."""
    try:
        async with asyncio.timeout(seconds), open_channel(address) as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            while not await _serving(stub, address):
                await asyncio.sleep(POLL_SECONDS)
    except TimeoutError:
        raise Unavailable(f"{address} listens but does not report that it serves (waited {seconds:g} s)") from None


async def _serving(stub: health_pb2_grpc.HealthStub, address: str) -> bool:
    try:
        answer = await stub.Check(health_pb2.HealthCheckRequest(), timeout=CALL_SECONDS, wait_for_ready=True)
    except grpc.aio.AioRpcError as error:
        if error.code() in NOT_YET:
            return False
        raise error_from_rpc(error, address) from error
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)
