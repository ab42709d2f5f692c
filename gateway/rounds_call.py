"""A Rounds call as a link uses it, and what comes of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import grpc

from dartspec.v1 import verifier_pb2


@dataclass(frozen=True)
class Heard:
    """A message. The offers of the sessions in ``answering`` are being answered; what became of it follows."""

    response: verifier_pb2.RoundsResponse
    answering: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Answered:
    """These sessions were told to verify what was searched in search_ms; None: nothing was found or sent."""

    sessions: tuple[int, ...]
    search_ms: float | None


class RoundsCall(Protocol):
    """A call that has been made. Its methods raise grpc.aio.AioRpcError when it ends with a status other than OK."""

    async def write(self, request: verifier_pb2.RoundsRequest) -> None:
        """Send a message."""

    async def read(self) -> Heard | Answered | None:
        """What comes next; None at the end."""

    def cancel(self) -> None:
        """End it."""


class DirectCall:
    """A call of this process's own gRPC, which leaves every offer to the reader."""

    def __init__(self, call: Any) -> None:
        self._call = call

    async def write(self, request: verifier_pb2.RoundsRequest) -> None:
        """See `RoundsCall`."""
        await self._call.write(request)

    async def read(self) -> Heard | None:
        """See `RoundsCall`."""
        response = await self._call.read()
        return None if response is grpc.aio.EOF else Heard(response)

    def cancel(self) -> None:
        """See `RoundsCall`."""
        self._call.cancel()
