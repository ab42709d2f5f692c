"""One n-gram service as a gateway sees it: every search on one stream, and a rest after failures."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from contextlib import suppress
from typing import Any

import grpc

from dartspec.services.common.channel import open_channel
from dartspec.services.common.tls import ClientTls
from dartspec.v1 import ngram_pb2, ngram_pb2_grpc

log = logging.getLogger(__name__)

FIRST_REST_SECONDS = 0.25
LAST_REST_SECONDS = 5.0


class SearchError(Exception):
    """No answer to a search; why. refused: the request is at fault, which says nothing about the service."""

    def __init__(self, reason: str, *, refused: bool = False) -> None:
        super().__init__(reason)
        self.refused = refused


class _DroppedError(Exception):
    """The stream ended before the answer came."""


class _Stream:
    """A SearchStream call. Answers come in the order of the requests; an error of any of them ends it."""

    def __init__(self, stub: Any) -> None:
        self._call = stub.SearchStream()
        self._waiting: deque[asyncio.Future[ngram_pb2.SearchResponse]] = deque()
        self._writing = asyncio.Lock()
        self._reading = asyncio.create_task(self._read())

    @property
    def is_open(self) -> bool:
        return not self._reading.done()

    async def search(self, request: ngram_pb2.SearchRequest) -> ngram_pb2.SearchResponse:
        async with self._writing:
            if not self.is_open:
                raise _DroppedError
            answer = asyncio.get_running_loop().create_future()
            self._waiting.append(answer)
            try:
                await self._call.write(request)
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
                pass  # the reader sees the end, too
            except asyncio.CancelledError:
                if asyncio.current_task().cancelling():  # type: ignore[union-attr]  # this is a task
                    raise
                # The call was cancelled, not this search.
        return await answer

    def end(self) -> None:
        """Give up what has not been answered."""
        self._call.cancel()

    async def ended(self, seconds: float | None = None) -> None:
        """Wait until everybody has been told, or for so long."""
        await asyncio.wait([self._reading], timeout=seconds)

    async def finish(self, seconds: float) -> None:
        """Ask for nothing more, and wait for what was asked, at most so long."""
        async with self._writing:
            if self.is_open:
                await self._call.done_writing()
        await self.ended(seconds)

    async def _read(self) -> None:
        try:
            while (response := await self._call.read()) is not grpc.aio.EOF:
                answer = self._waiting.popleft() if self._waiting else None
                if answer is not None and not answer.done():
                    answer.set_result(response)
        except grpc.aio.AioRpcError as error:
            log.debug("the stream of searches ended: %s: %s", error.code().name, error.details())
        finally:
            for answer in self._waiting:
                if not answer.done():
                    answer.set_exception(_DroppedError())


class NgramClient:
    """The stream to one service, opened when it is needed. After a failure it rests, longer each time, up to 5 s.

    relayable: no search has failed since one succeeded, so that searches need not go through here.
    """

    def __init__(self, address: str, tls: ClientTls | None) -> None:
        self.address = address
        self._channel = open_channel(address, tls)
        self._stub = ngram_pb2_grpc.NgramServiceStub(self._channel)
        self._stream: _Stream | None = None
        self._closed = False
        self.relayable = True
        self._rest = FIRST_REST_SECONDS
        self._rests_until: dict[str, float] = {}  # by tokenizer: an index may be missing for one and not another

    async def search(self, request: ngram_pb2.SearchRequest, seconds: float) -> ngram_pb2.SearchResponse:
        """The answer within ``seconds``; else SearchError."""
        try:
            async with asyncio.timeout(seconds):
                return await self._search(request, asyncio.get_running_loop().time() + seconds)
        except TimeoutError:
            # Nothing can be taken back from a stream, and what is late would hold up what follows.
            if self._stream is not None:
                self._stream.end()
            raise SearchError(f"no answer in {1e3 * seconds:.0f} ms") from None
        except grpc.aio.AioRpcError as error:
            refused = error.code() is grpc.StatusCode.INVALID_ARGUMENT
            raise SearchError(f"{error.code().name}: {error.details()}", refused=refused) from error

    async def close(self, grace: float = 0.0) -> None:
        """Close the channel. What was asked gets ``grace`` seconds to be answered; nothing is asked any more."""
        self._closed = True
        if grace and self._stream is not None:
            with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
                await self._stream.finish(grace)
        await self._channel.close()
        if self._stream is not None:
            await self._stream.ended()

    def rests(self, fingerprint: str, now: float) -> bool:
        """Whether it failed lately for this tokenizer."""
        return now < self._rests_until.get(fingerprint, 0.0)

    def failed(self, fingerprint: str, now: float, reason: str) -> None:
        """It did not answer as it should; ``reason`` is for the log."""
        # Once for an outage; every further try would only repeat it.
        level = logging.DEBUG if fingerprint in self._rests_until else logging.WARNING
        log.log(level, "ngram %s: %s; the verifier's chains stand in", self.address, reason)
        self._rests_until[fingerprint] = now + self._rest
        self._rest = min(2 * self._rest, LAST_REST_SECONDS)
        self.relayable = False

    def succeeded(self, fingerprint: str) -> None:
        """It answered."""
        self.relayable = True
        if self._rests_until.pop(fingerprint, None) is not None:
            log.info("ngram %s answers again", self.address)
            self._rest = FIRST_REST_SECONDS

    async def _search(self, request: ngram_pb2.SearchRequest, deadline: float) -> ngram_pb2.SearchResponse:
        if not self._closed:
            if self._stream is None or not self._stream.is_open:
                self._stream = _Stream(self._stub)
            with suppress(_DroppedError):
                return await self._stream.search(request)
        if self._closed:
            raise SearchError("it is no longer among the services")
        # The end of a stream does not say which search was at fault, nor whether the service is back already.
        return await self._stub.Search(request, timeout=deadline - asyncio.get_running_loop().time())
