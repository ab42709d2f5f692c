"""Start-up, service and shutdown of a verifier process."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from typing import Any

from dartspec.services.common.announce import announce_forever
from dartspec.services.common.background import in_daemon_thread
from dartspec.services.common.server import Server, wait_for_stop_signal
from dartspec.services.common.tls import ClientTls, ServerTls
from dartspec.services.draft.server import DraftServicer
from dartspec.services.verifier.config import VerifierSettings
from dartspec.services.verifier.convert import load_to_proto
from dartspec.services.verifier.engine import Engine
from dartspec.services.verifier.inspect import propose_after
from dartspec.services.verifier.replica import Replica, load_replica
from dartspec.services.verifier.server import VerifierServicer
from dartspec.v1 import draft_pb2_grpc, gateway_pb2, verifier_pb2_grpc

log = logging.getLogger(__name__)

NAMES = ("dartspec.v1.VerifierService", "dartspec.v1.DraftService")


async def serve(settings: VerifierSettings) -> None:
    """Check the addresses, load, warm up, report ready, serve until a signal, drain."""
    # Wrong files or an address in use must not cost a model load first.
    tls = ServerTls.chosen(settings.tls_cert, settings.tls_key, settings.tls_client_ca)
    ClientTls.chosen(settings.peer_ca, settings.peer_cert, settings.peer_key)
    probe = Server([], tls=tls)
    await probe.start(settings.listen)
    await probe.stop(0)
    with _metrics(settings.metrics_listen) as show:
        stop = asyncio.create_task(wait_for_stop_signal())
        loading = asyncio.wrap_future(in_daemon_thread(lambda: load_replica(settings)))
        waiting: set[asyncio.Future[Any]] = {stop, loading}
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        if not loading.done():
            # The thread that loads is inside torch; an ordinary exit would pull the interpreter away from under it.
            os._exit(0)
        replica = loading.result()
        engine = Engine(replica.decoder, replica.admission, replica.budget, settings.idle_seconds)
        show(engine)
        engine.start()
        try:
            await _serve(settings, replica, engine, stop, tls)
        finally:
            await asyncio.to_thread(engine.stop)


async def _serve(
    settings: VerifierSettings, replica: Replica, engine: Engine, stop: asyncio.Task[None], tls: ServerTls | None
) -> None:
    server = Server(NAMES, tls=tls)
    servicer = VerifierServicer(replica, engine)
    verifier_pb2_grpc.add_VerifierServiceServicer_to_server(servicer, server.grpc_server)
    draft_pb2_grpc.add_DraftServiceServicer_to_server(
        DraftServicer(
            replica.head,
            replica.hello,
            settings.top_k,
            replica.decoder.target.feature_layers,
            propose_after(engine, settings.top_k),
        ),
        server.grpc_server,
    )
    addresses = await server.start(settings.listen)

    def announced() -> AbstractAsyncContextManager[None]:
        return _announced(settings, replica, engine, addresses)

    try:
        await server.ready()
        print(f"dartspec verifier ready on {' '.join(addresses)}", flush=True)
        async with announced():
            await stop
        if settings.drain_seconds:
            await server.not_ready()
            await _drain(settings.drain_seconds, servicer, engine, announced)
    finally:
        servicer.stop()
        await server.stop()


async def _drain(
    seconds: float,
    servicer: VerifierServicer,
    engine: Engine,
    announced: Callable[[], AbstractAsyncContextManager[None]],
) -> None:
    """Let open answers go on to their end, for at most so long or until a second signal; refuse new ones."""

    async def end_what_is_open() -> None:
        await servicer.drain()
        async with announced():
            await asyncio.shield(asyncio.wrap_future(engine.drained))

    log.info("draining, %d sessions are open", engine.load.sessions)
    again, ending = asyncio.create_task(wait_for_stop_signal()), asyncio.create_task(end_what_is_open())
    await asyncio.wait((again, ending), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    if ending.done():
        ending.result()
    else:
        why = "at a second signal" if again.done() else f"after {seconds:g} s"
        log.warning("stopping %s, %d sessions are still open", why, engine.load.sessions)
    for task in (again, ending):
        task.cancel()
    await asyncio.gather(again, ending, return_exceptions=True)


@contextlib.contextmanager
def _metrics(listen: str) -> Iterator[Callable[[Engine], None]]:
    """An endpoint, if one is wanted, and the function by which it gets the engine to show."""
    if not listen:
        yield lambda engine: None
        return
    from dartspec.services.common.metrics import MetricsEndpoint
    from dartspec.services.verifier.metrics import EngineCollector

    with MetricsEndpoint(listen) as endpoint:
        log.info("metrics on http://%s/metrics", endpoint.address)
        yield lambda engine: endpoint.show(EngineCollector(engine))


@contextlib.asynccontextmanager
async def _announced(
    settings: VerifierSettings, replica: Replica, engine: Engine, addresses: list[str]
) -> AsyncIterator[None]:
    """Gateways are told of this verifier, at once and then at their pace."""

    def record() -> gateway_pb2.ServiceRecord:
        load = engine.load
        return gateway_pb2.ServiceRecord(
            kind=gateway_pb2.SERVICE_KIND_VERIFIER,
            address=settings.advertise or addresses[0],
            node=settings.node or socket.gethostname(),
            model=replica.description.model,
            tokenizer_fingerprints=[replica.tokenizer.fingerprint],
            model_fingerprint=replica.hello.model_fingerprint,
            max_sessions=replica.description.max_sessions,
            load=load_to_proto(load),
            draining=load.draining,
        )

    peers = ClientTls.chosen(settings.peer_ca, settings.peer_cert, settings.peer_key)
    announcing = asyncio.create_task(announce_forever(settings.announce, record, settings.registry, peers))
    try:
        yield
    finally:
        announcing.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await announcing
