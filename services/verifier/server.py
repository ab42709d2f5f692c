"""VerifierService: converts, hands over to the engine, converts back."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator

import grpc

from dartspec.services.common.errors import FailedPrecondition, InvalidArgument, Unavailable
from dartspec.services.verifier.admission import RETRY_AFTER_MS
from dartspec.services.verifier.convert import command_from_proto, event_to_proto, load_to_proto
from dartspec.services.verifier.engine import Engine
from dartspec.services.verifier.messages import Event, Load, Malformed
from dartspec.services.verifier.replica import Replica
from dartspec.v1 import verifier_pb2, verifier_pb2_grpc

log = logging.getLogger(__name__)

_TOKENIZER_PART_BYTES = 1024 * 1024


class VerifierServicer(verifier_pb2_grpc.VerifierServiceServicer):
    """The verifier's three calls."""

    def __init__(self, replica: Replica, engine: Engine) -> None:
        self._replica = replica
        self._engine = engine
        self._streams: set[_Stream] = set()
        self._draining = self._stopping = False

    async def drain(self) -> None:
        """Refuse new streams and sessions, and tell every gateway."""
        self._draining = True
        await asyncio.wrap_future(self._engine.drain())
        for stream in self._streams:
            stream.deliver([], self._engine.load)

    def stop(self) -> None:
        """End every Rounds stream and refuse new ones; gateways resume their answers elsewhere."""
        self._draining = self._stopping = True
        for stream in self._streams:
            stream.end()

    async def Rounds(  # noqa: N802 - the name is the protocol's
        self, request_iterator: AsyncIterator[verifier_pb2.RoundsRequest], context: grpc.aio.ServicerContext
    ) -> AsyncIterator[verifier_pb2.RoundsResponse]:
        first = await anext(request_iterator, None)
        if first is None or not first.HasField("hello"):
            raise InvalidArgument("hello", "the first message of a Rounds stream must carry it")
        check_hello(first.hello, self._replica.hello)
        if self._draining:
            raise Unavailable("this verifier is draining; ask another one", retry_after_ms=RETRY_AFTER_MS)
        stream = _Stream(asyncio.get_running_loop())
        self._streams.add(stream)
        reader = asyncio.create_task(self._read(first, request_iterator, stream))
        try:
            yield verifier_pb2.RoundsResponse(hello=self._replica.hello, load=load_to_proto(self._engine.load))
            while (message := await stream.next()) is not None:
                yield message
            if self._stopping:
                raise Unavailable("this verifier is stopping")
            reader.result()
        finally:
            self._streams.discard(stream)
            reader.cancel()
            self._engine.drop(stream)

    async def _read(
        self,
        message: verifier_pb2.RoundsRequest,
        request_iterator: AsyncIterator[verifier_pb2.RoundsRequest],
        stream: _Stream,
    ) -> None:
        """Hand over the commands of every message; a client that closes its side, or an error, ends the stream."""
        try:
            self._submit(message, stream)
            async for message in request_iterator:
                self._submit(message, stream)
        finally:
            stream.end()

    def _submit(self, message: verifier_pb2.RoundsRequest, stream: _Stream) -> None:
        for command in message.commands:
            try:
                self._engine.submit(stream, command_from_proto(command))
            except InvalidArgument as error:
                # By way of the engine, so that the answer keeps its place among the session's events.
                self._engine.submit(stream, Malformed(command.session, error))

    async def Describe(  # noqa: N802
        self, request: verifier_pb2.VerifierServiceDescribeRequest, context: grpc.aio.ServicerContext
    ) -> verifier_pb2.VerifierServiceDescribeResponse:
        answer = verifier_pb2.VerifierServiceDescribeResponse()
        answer.CopyFrom(self._replica.description)
        answer.load.CopyFrom(load_to_proto(self._engine.load))
        return answer

    async def GetTokenizer(  # noqa: N802
        self, request: verifier_pb2.GetTokenizerRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[verifier_pb2.GetTokenizerResponse]:
        tokenizer = self._replica.tokenizer
        data = tokenizer.json_bytes
        yield verifier_pb2.GetTokenizerResponse(
            tokenizer_json=data[:_TOKENIZER_PART_BYTES],
            chat_template=tokenizer.chat_template,
            special_tokens=tokenizer.special_tokens,
            fingerprint=tokenizer.fingerprint,
        )
        for start in range(_TOKENIZER_PART_BYTES, len(data), _TOKENIZER_PART_BYTES):
            yield verifier_pb2.GetTokenizerResponse(tokenizer_json=data[start : start + _TOKENIZER_PART_BYTES])


class _Stream:
    """The way from the engine's thread to one Rounds call. Bounded by the credit that the gateway granted."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._queue: asyncio.Queue[verifier_pb2.RoundsResponse | None] = asyncio.Queue()

    def deliver(self, events: list[Event], load: Load) -> None:
        message = verifier_pb2.RoundsResponse(
            events=[event_to_proto(event) for event in events], load=load_to_proto(load)
        )
        # The loop is closed only when the process ends.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._queue.put_nowait, message)

    def end(self) -> None:
        self._queue.put_nowait(None)

    async def next(self) -> verifier_pb2.RoundsResponse | None:
        return await self._queue.get()


def check_hello(theirs: verifier_pb2.Hello, ours: verifier_pb2.Hello) -> None:
    """Raise FailedPrecondition for the first field in which the two sides do not fit together."""
    if theirs.protocol != ours.protocol:
        raise FailedPrecondition(
            f"hello.protocol: the gateway speaks revision {theirs.protocol}, this verifier {ours.protocol}",
            field="hello.protocol",
        )
    for name in ("model_fingerprint", "tokenizer_fingerprint", "head_fingerprint", "sampler"):
        wanted, have = getattr(theirs, name), getattr(ours, name)
        if wanted and wanted != have:
            raise FailedPrecondition(
                f"hello.{name}: the gateway expects {wanted!r}, this verifier has {have!r}", field=f"hello.{name}"
            )
