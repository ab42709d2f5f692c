"""A verifier's stand-in at an address that stays, and the place where an answer is cut at an exact token."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any

import grpc

from dartspec.services.common.channel import open_channel
from dartspec.services.common.errors import Unavailable
from dartspec.services.common.server import Server
from dartspec.v1 import verifier_pb2_grpc


class Trap:
    """Springs once, before the message that would bring some answer past ``index`` tokens; then ``act`` runs.

    The message is in flight meanwhile: it is lost when ``act`` raises, else it arrives late.
    """

    def __init__(self, index: int, act: Callable[[Relay], Awaitable[None]]) -> None:
        self.index = index
        self.sprung = asyncio.Event()
        self._act = act

    def reached(self, counts: Iterable[int]) -> bool:
        """Whether it springs for answers with so many tokens."""
        return not self.sprung.is_set() and any(count > self.index for count in counts)

    async def spring(self, relay: Relay) -> None:
        """Let it happen."""
        self.sprung.set()
        await self._act(relay)


class Relay(verifier_pb2_grpc.VerifierServiceServicer):
    """Passes all calls on to the verifier at ``backend``, which may be another one from call to call."""

    def __init__(self) -> None:
        self.address = ""
        self.backend = ""
        self.trap: Trap | None = None
        self._server = Server(["dartspec.v1.VerifierService"])
        verifier_pb2_grpc.add_VerifierServiceServicer_to_server(self, self._server.grpc_server)

    async def start(self, address: str) -> None:
        """Listen on ``address``."""
        (self.address,) = await self._server.start([address])
        await self._server.ready()

    async def stop(self) -> None:
        """Cut everything off."""
        await self._server.stop(0)

    async def Describe(self, request: Any, context: Any) -> Any:  # noqa: N802 - the names are the protocol's
        async with open_channel(self.backend) as channel:
            return await self._checked(verifier_pb2_grpc.VerifierServiceStub(channel).Describe(request))

    async def GetTokenizer(self, request: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802
        async with open_channel(self.backend) as channel:
            async for part in verifier_pb2_grpc.VerifierServiceStub(channel).GetTokenizer(request):
                yield part

    async def Rounds(self, requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:  # noqa: N802
        tokens: dict[int, int] = {}  # of the answer so far, by session
        async with open_channel(self.backend) as channel:
            call = verifier_pb2_grpc.VerifierServiceStub(channel).Rounds()
            sending = asyncio.create_task(_send(requests, call, tokens))
            try:
                while (response := await self._checked(call.read())) is not grpc.aio.EOF:
                    for event in response.events:
                        tokens[event.session] = tokens.get(event.session, 0) + len(event.round.token_ids)
                    if self.trap is not None and self.trap.reached(tokens.values()):
                        await self.trap.spring(self)
                    yield response
            finally:
                sending.cancel()
                call.cancel()

    async def _checked(self, call: Awaitable[Any]) -> Any:
        try:
            return await call
        except grpc.aio.AioRpcError as error:
            raise Unavailable(f"verifier behind the relay: {error.details()}") from error


async def _send(requests: AsyncIterator[Any], call: Any, tokens: dict[int, int]) -> None:
    async for request in requests:
        for command in request.commands:
            if command.HasField("open"):
                tokens[command.session] = len(command.open.token_ids) - command.open.prompt_len
            elif command.HasField("close"):
                tokens.pop(command.session, None)
        await call.write(request)
    await call.done_writing()
