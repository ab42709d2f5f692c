"""A running gateway: the parts put together."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dartspec.gateway.admin import AdminServicer, Status
from dartspec.gateway.api_keys import ApiKeys
from dartspec.gateway.config import Settings
from dartspec.gateway.dns_feed import DnsFeed, ServiceName, is_name
from dartspec.gateway.fleet import Fleet
from dartspec.gateway.grpc_front import GatewayServicer, RegistryServicer
from dartspec.gateway.grpc_keys import KeyInterceptor
from dartspec.gateway.registry import Record, Registry, ServiceKind
from dartspec.gateway.registry_feed import RegistryFeed
from dartspec.gateway.search import TreeSearch
from dartspec.gateway.service import Generation
from dartspec.gateway.tracing import Traces
from dartspec.services.common.server import Server, wait_for_stop_signal
from dartspec.services.common.tls import ClientTls, ServerTls
from dartspec.v1 import gateway_pb2_grpc

if TYPE_CHECKING:
    from dartspec.gateway.relay import Relay

log = logging.getLogger(__name__)

SERVICES = ("dartspec.v1.GatewayService", "dartspec.v1.RegistryService", "dartspec.v1.AdminService")
FIRST_ATTEMPT_SECONDS = 10.0


@dataclass(frozen=True)
class Gateway:
    """What a running gateway listens on, and its parts for inspection. http: a URL, empty without --http-listen."""

    addresses: list[str]
    http: str
    generation: Generation
    fleet: Fleet


@asynccontextmanager
async def running(settings: Settings) -> AsyncIterator[Gateway]:
    """A gateway that answers, its static verifiers tried once; stopped on leaving."""
    tls = ServerTls.chosen(settings.tls_cert, settings.tls_key, settings.tls_client_ca)
    peers = ClientTls.chosen(settings.peer_ca, settings.peer_cert, settings.peer_key)
    registry = Registry(_static_records(settings), interval=settings.heartbeat_seconds, clock=time.monotonic)
    learned = settings.policy == "learned"
    search = TreeSearch(registry, settings, peers)
    relay = _relay(settings, search, peers)
    fleet = Fleet(
        registry,
        routing=settings.routing,
        limits=settings.limits,
        rng=random.Random(),
        learned=learned,
        tls=peers,
        relay=relay,
    )
    feed = _feed(settings, registry, fleet)
    traces = Traces.to(settings.otel_endpoint)
    generation = Generation(fleet, search, settings, traces)
    keys = ApiKeys.read(settings.api_keys_file)
    names = DnsFeed(_service_names(settings), registry, fleet.registry_changed)
    server = Server(SERVICES, [KeyInterceptor(keys)], settings.connection_age_seconds, tls)
    gateway_pb2_grpc.add_GatewayServiceServicer_to_server(GatewayServicer(generation, fleet, keys), server.grpc_server)
    gateway_pb2_grpc.add_RegistryServiceServicer_to_server(
        RegistryServicer(registry, fleet.registry_changed), server.grpc_server
    )
    status = Status(fleet, registry, generation, feed, time.monotonic, time.monotonic())
    gateway_pb2_grpc.add_AdminServiceServicer_to_server(AdminServicer(status), server.grpc_server)
    addresses = await server.start(settings.listen)
    await names.look()
    background = [asyncio.create_task(run()) for run in (fleet.run, names.run, generation.pace.run)]
    if feed is not None:
        background.append(asyncio.create_task(feed.run()))
    try:
        async with _http(settings, generation, fleet, keys, tls) as http:
            await fleet.first_attempts(FIRST_ATTEMPT_SECONDS)
            await server.ready()
            yield Gateway(addresses, http, generation, fleet)
    finally:
        await server.stop(settings.drain_seconds)
        for task in background:
            task.cancel()
        await asyncio.wait(background)
        if relay is not None:
            relay.close()
        await search.close()
        await traces.close()


async def serve(settings: Settings) -> None:
    """Run until SIGINT or SIGTERM; says when it is ready in one line on stdout."""
    async with running(settings) as gateway:
        print("dartspec gateway ready on", *gateway.addresses, *filter(None, [gateway.http]), flush=True)
        await wait_for_stop_signal()


@asynccontextmanager
async def _http(
    settings: Settings, generation: Generation, fleet: Fleet, keys: ApiKeys, tls: ServerTls | None
) -> AsyncIterator[str]:
    """The HTTP API and the endpoint of the metrics, if they are wanted; gives the API's URL."""
    async with AsyncExitStack() as exits:
        url = ""
        if settings.metrics_listen:
            from dartspec.gateway.metrics import GatewayCollector
            from dartspec.services.common.metrics import MetricsEndpoint

            endpoint = exits.enter_context(MetricsEndpoint(settings.metrics_listen))
            endpoint.show(GatewayCollector(generation.stats))
            log.info("metrics on http://%s/metrics", endpoint.address)
        if settings.http_listen:
            from dartspec.gateway.http.server import http_server

            front = http_server(generation, fleet, keys, settings.drain_seconds, tls)
            url = await front.start(settings.http_listen)
            exits.push_async_callback(front.stop)
            log.info("OpenAI-style API on %s/v1", url)
        yield url


def _relay(settings: Settings, search: TreeSearch, peers: ClientTls | None) -> Relay | None:
    if settings.relay == "off" or peers is not None:
        return None
    try:
        from dartspec.gateway.relay import Relay
    except ImportError as error:
        log.info("rounds go through Python, which makes each a little longer (%s)", error)
        return None
    return Relay(search)


def _feed(settings: Settings, registry: Registry, fleet: Fleet) -> RegistryFeed | None:
    if not settings.registry:
        return None
    return RegistryFeed(settings.registry, registry, fleet.registry_changed)


def _static_records(settings: Settings) -> tuple[Record, ...]:
    return tuple(Record(kind, value) for kind, value in _named(settings) if not is_name(value))


def _service_names(settings: Settings) -> list[ServiceName]:
    return [ServiceName.parse(kind, value) for kind, value in _named(settings) if is_name(value)]


def _named(settings: Settings) -> list[tuple[ServiceKind, str]]:
    """What --verifier and --ngram say."""
    verifiers = [(ServiceKind.VERIFIER, value) for value in settings.verifier]
    return [*verifiers, *((ServiceKind.NGRAM, value) for value in settings.ngram)]
