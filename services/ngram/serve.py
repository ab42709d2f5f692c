"""Start-up, service and shutdown of an ngram process. The calls themselves are answered by the extension."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Sequence
from typing import Any

import ngram_index

from dartspec.services.common.announce import announce_forever
from dartspec.services.common.background import in_daemon_thread
from dartspec.services.common.channel import MAX_MESSAGE_BYTES
from dartspec.services.common.errors import InvalidArgument
from dartspec.services.common.server import DRAIN_SECONDS, wait_for_stop_signal
from dartspec.services.ngram.config import ServeSettings
from dartspec.services.ngram.errors import index_errors
from dartspec.v1 import gateway_pb2

log = logging.getLogger(__name__)


async def serve(settings: ServeSettings) -> None:
    """Open the indexes, serve, report ready, and stop at a signal after running calls."""
    if not settings.index:
        raise InvalidArgument("--index", "name at least one index file; `dartspec ngram build` makes one")
    stop = asyncio.create_task(wait_for_stop_signal())
    starting = asyncio.wrap_future(in_daemon_thread(lambda: _start(settings)))
    waiting: set[asyncio.Future[Any]] = {stop, starting}
    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():
        return  # nothing is served yet
    server, fingerprints = starting.result()
    print(f"dartspec ngram ready on {' '.join(server.addresses)}", flush=True)
    announcing = asyncio.create_task(_announce(settings, server.addresses, fingerprints))
    try:
        await stop
    finally:
        announcing.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await announcing
        if not await asyncio.to_thread(server.stop, DRAIN_SECONDS):
            log.warning("calls were cut off that did not end within %s s", DRAIN_SECONDS)


def _start(settings: ServeSettings) -> tuple[ngram_index.Server, list[str]]:
    with index_errors():
        indexes = []
        for path in settings.index:
            indexes.append(ngram_index.Index.open(path, settings.backing))
            log.info("%s: order %d, nodes %s", path, indexes[-1].order, indexes[-1].nodes)
        server = ngram_index.Server(
            indexes,
            settings.listen,
            max_message_bytes=MAX_MESSAGE_BYTES,
            threads=settings.threads or os.cpu_count() or 1,
        )
    return server, [index.fingerprint for index in indexes]


async def _announce(settings: ServeSettings, addresses: Sequence[str], fingerprints: Sequence[str]) -> None:
    if not settings.announce:
        return

    def record() -> gateway_pb2.ServiceRecord:
        return gateway_pb2.ServiceRecord(
            kind=gateway_pb2.SERVICE_KIND_NGRAM,
            address=settings.advertise or addresses[0],
            node=settings.node or socket.gethostname(),
            tokenizer_fingerprints=fingerprints,
        )

    await announce_forever(settings.announce, record)
