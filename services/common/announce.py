"""Heartbeats by which a service announces itself: to gateways, and to a registry that gateways read."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

import grpc

from dartspec.services.common.channel import open_channel
from dartspec.services.common.credentials import credentials
from dartspec.services.common.redis_records import announce_to_redis
from dartspec.services.common.tls import ClientTls
from dartspec.v1 import gateway_pb2, gateway_pb2_grpc

log = logging.getLogger(__name__)

RETRY_SECONDS = 1.0
CALL_SECONDS = 2.0


async def announce_forever(
    gateways: Sequence[str],
    record: Callable[[], gateway_pb2.ServiceRecord],
    registry: str = "",
    tls: ClientTls | None = None,
) -> None:
    """Send ``record()`` to every gateway at the pace that each asks for, until cancelled. Failures are retried.

    ``registry``: URL of a Redis that gets it too, if not empty. ``tls``: for the way to the gateways.
    """
    async with asyncio.TaskGroup() as group:
        if registry:
            group.create_task(announce_to_redis(registry, record))
        for address in gateways:
            group.create_task(_announce(address, record, tls))


async def _announce(address: str, record: Callable[[], gateway_pb2.ServiceRecord], tls: ClientTls | None) -> None:
    reachable = True
    async with open_channel(address, tls) as channel:
        stub = gateway_pb2_grpc.RegistryServiceStub(channel)
        while True:
            try:
                request = gateway_pb2.AnnounceRequest(record=record())
                answer = await stub.Announce(request, timeout=CALL_SECONDS, metadata=credentials())
                pause = max(answer.next_within_ms / 2000.0, 0.05)
                if not reachable:
                    log.info("gateway %s is back", address)
                reachable = True
            except grpc.aio.AioRpcError as error:
                if reachable:
                    log.warning("gateway %s does not take announcements: %s", address, error.details())
                reachable, pause = False, RETRY_SECONDS
            await asyncio.sleep(pause)
