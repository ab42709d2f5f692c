"""AdminService of gateway.proto: what a gateway sees, and the little that can be told to it while it runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import grpc

from dartspec import __version__
from dartspec.gateway.breaker import BreakerState
from dartspec.gateway.fleet import Fleet
from dartspec.gateway.link import VerifierLink
from dartspec.gateway.registry import Record, Registry, ServiceKind
from dartspec.gateway.registry_feed import RegistryFeed
from dartspec.gateway.service import Generation
from dartspec.gateway.types import Mode
from dartspec.v1 import gateway_pb2, gateway_pb2_grpc


@dataclass(frozen=True)
class Status:
    """Where an `AdminServicer` looks. started: a reading of ``clock``, in seconds."""

    fleet: Fleet
    registry: Registry
    generation: Generation
    feed: RegistryFeed | None
    clock: Callable[[], float]
    started: float


class AdminServicer(gateway_pb2_grpc.AdminServiceServicer):
    """Converts, looks, converts."""

    def __init__(self, status: Status) -> None:
        self._status = status

    async def GetStatus(  # noqa: N802 - the names are those in gateway.proto
        self, request: gateway_pb2.GetStatusRequest, context: grpc.aio.ServicerContext
    ) -> gateway_pb2.GetStatusResponse:
        status = self._status
        links = status.fleet.links
        return gateway_pb2.GetStatusResponse(
            version=__version__,
            uptime_seconds=status.clock() - status.started,
            open_requests=status.generation.open_requests,
            models=status.fleet.models,
            routing=status.fleet.routing,
            ready_replicas=sum(_state(link) == gateway_pb2.REPLICA_STATE_READY for link in links),
            replicas=len(links),
            ngram_services=len(status.registry.records(ServiceKind.NGRAM)),
            registry_state=_registry_state(status.feed),
        )

    async def ListReplicas(  # noqa: N802
        self, request: gateway_pb2.ListReplicasRequest, context: grpc.aio.ServicerContext
    ) -> gateway_pb2.ListReplicasResponse:
        fleet = self._status.fleet
        records = fleet.records()
        replicas = [_replica(link, records.get(link.address)) for link in fleet.links]
        return gateway_pb2.ListReplicasResponse(replicas=replicas)

    async def DrainReplica(  # noqa: N802
        self, request: gateway_pb2.DrainReplicaRequest, context: grpc.aio.ServicerContext
    ) -> gateway_pb2.DrainReplicaResponse:
        self._status.fleet.hold(request.address, held=True)
        return gateway_pb2.DrainReplicaResponse()

    async def UndrainReplica(  # noqa: N802
        self, request: gateway_pb2.UndrainReplicaRequest, context: grpc.aio.ServicerContext
    ) -> gateway_pb2.UndrainReplicaResponse:
        self._status.fleet.hold(request.address, held=False)
        return gateway_pb2.UndrainReplicaResponse()


def _replica(link: VerifierLink, record: Record | None) -> gateway_pb2.Replica:
    """What is known; a replica that was never reached is listed all the same."""
    model = link.model
    return gateway_pb2.Replica(
        address=link.address,
        node=record.node if record else "",
        model=model.name if model else record.model if record else "",
        model_fingerprint=model.fingerprint if model else record.model_fingerprint if record else "",
        tokenizer_fingerprint=model.tokenizer_fingerprint if model else "",
        state=_state(link),
        open=_counts(link.open_by_mode),
        opened=_counts(link.opened),
        load=link.report,
        failures=link.breaker.failures,
        max_sessions=link.max_sessions,
    )


def _state(link: VerifierLink) -> gateway_pb2.ReplicaState:
    if link.draining:
        return gateway_pb2.REPLICA_STATE_DRAINING
    if not link.up:
        return gateway_pb2.REPLICA_STATE_DOWN
    match link.breaker_state():
        case BreakerState.OPEN:
            return gateway_pb2.REPLICA_STATE_RESTING
        case BreakerState.HALF_OPEN:
            return gateway_pb2.REPLICA_STATE_TRIAL
    return gateway_pb2.REPLICA_STATE_READY


def _counts(sessions: Counter[Mode]) -> gateway_pb2.ModeCounts:
    return gateway_pb2.ModeCounts(auto=sessions[Mode.AUTO], plain=sessions[Mode.PLAIN], dart=sessions[Mode.DART])


def _registry_state(feed: RegistryFeed | None) -> gateway_pb2.RegistryState:
    if feed is None:
        return gateway_pb2.REGISTRY_STATE_NONE
    return gateway_pb2.REGISTRY_STATE_CONNECTED if feed.connected else gateway_pb2.REGISTRY_STATE_OUT
