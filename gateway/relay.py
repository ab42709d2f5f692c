"""Rounds streams in a thread of the extension, which answers offers before this process has read them.

Between an offer and the command to verify its tree lie two services and no decision, so nothing needs to wait for the
event loop. Where it matters what is done next, nothing is allowed beforehand, and everything goes through Python.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import grpc
import ngram_index

from dartspec.gateway.model import Model
from dartspec.gateway.rounds_call import Answered, Heard
from dartspec.gateway.search import CONTEXT_TOKENS, SearchRoute, TreeSearch
from dartspec.v1 import verifier_pb2

_CODES = {code.value[0]: code for code in grpc.StatusCode}
_STATUS_KEY = "grpc-status-details-bin"


class Relay:
    """All streams of a gateway; made, used and closed on one event loop. Does not speak TLS.

    ``search``: knows where and how offers are searched now.
    """

    def __init__(self, search: TreeSearch) -> None:
        self._search = search
        self._core = ngram_index.Relay()
        self._calls: dict[int, RelayedCall] = {}
        asyncio.get_running_loop().add_reader(self._core.fileno(), self._take)

    def open(self, address: str) -> RelayedCall:
        """A Rounds call to a verifier, "host:port" or "unix:/path"; whether it can be reached is seen when reading."""
        stream = self._core.open(address)
        call = RelayedCall(self._core, stream, self._search, lambda: self._calls.pop(stream, None))
        self._calls[stream] = call
        return call

    def close(self) -> None:
        """End all streams and the thread."""
        asyncio.get_running_loop().remove_reader(self._core.fileno())
        self._core.stop()

    def _take(self) -> None:
        for kind, stream, *what in self._core.take():
            call = self._calls.get(stream)
            if call is not None:
                call.came(kind, *what)


class RelayedCall:
    """A `RoundsCall` whose offers can be answered on the way, for sessions and as often as was allowed."""

    def __init__(
        self, core: ngram_index.Relay, stream: int, search: TreeSearch, cancelled: Callable[[], object]
    ) -> None:
        self._core = core
        self._stream = stream
        self._search = search
        self._cancelled = cancelled
        self._model: Model | None = None
        self._route: SearchRoute | None = None
        self._queue: asyncio.Queue[Heard | Answered | grpc.aio.AioRpcError | None] = asyncio.Queue()

    async def write(self, request: verifier_pb2.RoundsRequest) -> None:
        """See `RoundsCall`."""
        self._core.send(self._stream, request.SerializeToString())

    async def read(self) -> Heard | Answered | None:
        """See `RoundsCall`."""
        what = await self._queue.get()
        if isinstance(what, grpc.aio.AioRpcError):
            raise what
        return what

    def cancel(self) -> None:
        """See `RoundsCall`."""
        self._core.close(self._stream)
        self._cancelled()

    def guide(self, model: Model) -> None:
        """Search offers for that model as the `TreeSearch` would now, or leave them to the reader."""
        self._model = model
        route = self._search.route(model)
        if route != self._route:
            self._core.route(self._stream, route)
            self._route = route

    def follow(self, session: int, token_ids: Sequence[int]) -> None:
        """A session with these tokens is about to be opened."""
        self._core.follow(self._stream, session, list(token_ids[-CONTEXT_TOKENS:]))

    def allow(self, session: int, offers: int) -> None:
        """Answer so many more offers of a session, whatever was allowed before."""
        self._core.allow(self._stream, session, offers)

    def forget(self, session: int) -> None:
        """A session has ended."""
        self._core.forget(self._stream, session)

    def came(self, kind: str, *what: Any) -> None:
        """Something that the extension says of this stream."""
        match kind, *what:
            case "message", data, answering:
                message = verifier_pb2.RoundsResponse.FromString(data)
                self._queue.put_nowait(Heard(message, frozenset(answering)))
            case "answered", sessions, search_us:
                self._queue.put_nowait(Answered(tuple(sessions), search_us / 1e3))
            case "unanswered", sessions, code, reason:
                if self._route is not None and self._model is not None:
                    late = code == grpc.StatusCode.DEADLINE_EXCEEDED.value[0]
                    self._search.route_failed(self._route.address, self._model, reason, late=late)
                self._queue.put_nowait(Answered(tuple(sessions), None))
            case "ended", 0, _, _:
                self._queue.put_nowait(None)
            case "ended", code, message, details:
                trailing = grpc.aio.Metadata(*([(_STATUS_KEY, details)] if details else []))
                error = grpc.aio.AioRpcError(_CODES[code], grpc.aio.Metadata(), trailing, details=message)
                self._queue.put_nowait(error)
