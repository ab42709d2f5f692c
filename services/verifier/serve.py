"""Start-up, service and shutdown of a verifier process."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from typing import Any

from dartspec.services.common.announce import announce_forever
from dartspec.services.common.background import in_daemon_thread
from dartspec.services.common.server import Server, wait_for_stop_signal
from dartspec.services.draft.server import DraftServicer
from dartspec.services.verifier.config import VerifierSettings
from dartspec.services.verifier.convert import load_to_proto
from dartspec.services.verifier.engine import Engine
from dartspec.services.verifier.inspect import propose_after
from dartspec.services.verifier.replica import Replica, load_replica
from dartspec.services.verifier.server import VerifierServicer
from dartspec.v1 import draft_pb2, draft_pb2_grpc, gateway_pb2, verifier_pb2, verifier_pb2_grpc

log = logging.getLogger(__name__)


async def serve(settings: VerifierSettings) -> None:
    """Check the addresses, load, warm up, report ready, serve until a signal."""
    names = [
        verifier_pb2.DESCRIPTOR.services_by_name["VerifierService"].full_name,
        draft_pb2.DESCRIPTOR.services_by_name["DraftService"].full_name,
    ]
    # An address in use must not cost a model load first.
    probe = Server([])
    await probe.start(settings.listen)
    await probe.stop(0)
    stop = asyncio.create_task(wait_for_stop_signal())
    loading = asyncio.wrap_future(in_daemon_thread(lambda: load_replica(settings)))
    waiting: set[asyncio.Future[Any]] = {stop, loading}
    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    if not loading.done():
        # The thread that loads is inside torch; an ordinary exit would pull the interpreter away from under it.
        os._exit(0)
    replica = loading.result()
    engine = Engine(replica.decoder, replica.admission, replica.budget, settings.idle_seconds)
    engine.start()
    server = Server(names)
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
    await server.ready()
    print(f"dartspec verifier ready on {' '.join(addresses)}", flush=True)
    announcing = asyncio.create_task(_announce(settings, replica, engine, addresses))
    try:
        await stop
    finally:
        announcing.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await announcing
        servicer.stop()
        await server.stop()
        await asyncio.to_thread(engine.stop)


async def _announce(settings: VerifierSettings, replica: Replica, engine: Engine, addresses: list[str]) -> None:
    if not settings.announce:
        return

    def record() -> gateway_pb2.ServiceRecord:
        return gateway_pb2.ServiceRecord(
            kind=gateway_pb2.SERVICE_KIND_VERIFIER,
            address=settings.advertise or addresses[0],
            node=settings.node or socket.gethostname(),
            model=replica.description.model,
            tokenizer_fingerprints=[replica.tokenizer.fingerprint],
            load=load_to_proto(engine.load),
        )

    await announce_forever(settings.announce, record)
