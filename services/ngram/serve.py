"""Start-up, service and shutdown of an ngram process. The calls themselves are answered by the extension."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
from collections.abc import Iterator, Sequence
from typing import Any

import ngram_index

from dartspec.services.common.announce import announce_forever
from dartspec.services.common.background import in_daemon_thread
from dartspec.services.common.errors import InvalidArgument
from dartspec.services.common.server import DRAIN_SECONDS, wait_for_stop_signal
from dartspec.services.common.tls import ClientTls
from dartspec.services.ngram.config import ServeSettings
from dartspec.services.ngram.errors import index_errors
from dartspec.services.ngram.reload import FileIdentity, Reloader, Served
from dartspec.v1 import gateway_pb2

log = logging.getLogger(__name__)


async def serve(settings: ServeSettings) -> None:
    """Open the indexes, serve, read them into memory, report ready, and stop at a signal after running calls."""
    if not settings.index:
        raise InvalidArgument("--index", "name at least one index file; `dartspec ngram build` makes one")
    peers = ClientTls.chosen(settings.peer_ca, settings.peer_cert, settings.peer_key)
    hangup = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, hangup.set)
    stop = asyncio.create_task(wait_for_stop_signal())
    with index_errors():
        # Threads inherit it, so this comes before the first one.
        ngram_index.set_numa_policy(settings.numa)
    starting = asyncio.wrap_future(in_daemon_thread(lambda: _start(settings)))
    if not await _unless(stop, starting):
        return  # nothing is served yet
    server, served = starting.result()
    reloader = Reloader(server, served, settings.backing)
    tasks: list[asyncio.Task[None]] = []
    try:
        with _metrics(server, reloader, settings.metrics_listen):
            tasks.append(asyncio.create_task(reloader.fill()))
            if not await _unless(stop, tasks[0]):
                return
            tasks[0].result()
            server.set_ready()
            print(f"dartspec ngram ready on {' '.join(server.addresses)}", flush=True)
            tasks.append(asyncio.create_task(reloader.watch(hangup, settings.reload_every)))
            fingerprints = [each.fingerprint for each in served]
            tasks.append(asyncio.create_task(_announce(settings, server.addresses, fingerprints, peers)))
            await stop
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if not await asyncio.to_thread(server.stop, DRAIN_SECONDS):
            log.warning("calls were cut off that did not end within %s s", DRAIN_SECONDS)


async def _unless(stop: asyncio.Task[None], doing: asyncio.Future[Any]) -> bool:
    """Wait for ``doing``; false when ``stop`` came first."""
    waiting: set[asyncio.Future[Any]] = {stop, doing}
    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    return doing.done()


def _start(settings: ServeSettings) -> tuple[ngram_index.Server, list[Served]]:
    with index_errors():
        indexes = []
        served = []
        for path in settings.index:
            # Before it is opened: a file that is replaced in between is found to be another one at the next look.
            identity = FileIdentity.of(path)
            indexes.append(ngram_index.Index.open(path))
            served.append(Served(path, indexes[-1].fingerprint, identity))
            log.info("%s: order %d, nodes %s", path, indexes[-1].order, indexes[-1].nodes)
        server = ngram_index.Server(
            indexes,
            settings.listen,
            max_message_bytes=settings.max_message_bytes,
            max_queries=settings.max_queries,
            max_queue=settings.max_queue,
            max_streams=settings.max_streams,
            threads=settings.threads or os.cpu_count() or 1,
            ready=False,
        )
    return server, served


@contextlib.contextmanager
def _metrics(server: ngram_index.Server, reloader: Reloader, listen: str) -> Iterator[None]:
    if not listen:
        yield
        return
    from dartspec.services.common.metrics import MetricsEndpoint
    from dartspec.services.ngram.metrics import ServiceCollector

    with MetricsEndpoint(listen) as endpoint:
        endpoint.show(ServiceCollector(server, reloader))
        log.info("metrics on http://%s/metrics", endpoint.address)
        yield


async def _announce(
    settings: ServeSettings, addresses: Sequence[str], fingerprints: Sequence[str], peers: ClientTls | None
) -> None:
    if not settings.announce and not settings.registry:
        return

    def record() -> gateway_pb2.ServiceRecord:
        return gateway_pb2.ServiceRecord(
            kind=gateway_pb2.SERVICE_KIND_NGRAM,
            address=settings.advertise or addresses[0],
            node=settings.node or socket.gethostname(),
            tokenizer_fingerprints=fingerprints,
        )

    await announce_forever(settings.announce, record, settings.registry, peers)
