"""A client of gateways over synthetic verifiers: it checks every token, and notes when it came."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import grpc

from bench.synthetic_verifier.model import TOKENIZER, answer_to
from dartspec.services.common.channel import open_channel
from dartspec.v1 import common_pb2, gateway_pb2, gateway_pb2_grpc


@dataclass
class Taken:
    """What a client got of an answer. error: a gRPC code, "WRONG" for tokens that are not the answer's, "" for none.

    chunks: (seconds since the request was sent, tokens). ledger: absent when the answer did not come to its end.
    """

    chunks: list[tuple[float, int]] = field(default_factory=list)
    error: str = ""
    ledger: gateway_pb2.Ledger | None = None

    @property
    def tokens(self) -> int:
        """That came."""
        return sum(count for _, count in self.chunks)


class Client:
    """A connection of its own to one gateway."""

    def __init__(self, address: str) -> None:
        self._channel = open_channel(address)
        self._stub = gateway_pb2_grpc.GatewayServiceStub(self._channel)

    async def close(self) -> None:
        """Close the connection."""
        await self._channel.close()

    async def answer(
        self,
        prompt: str,
        tokens: int,
        mode: str = "auto",
        *,
        metadata: tuple[tuple[str, str], ...] = (),
        on_tokens: Callable[[int], object] | None = None,
    ) -> Taken:
        """One answer of exactly so many tokens; ``on_tokens`` gets the size of each chunk. Never raises for errors."""
        taken = Taken()
        ids = TOKENIZER.encode(prompt).ids
        expected = answer_to(ids, tokens)
        request = gateway_pb2.GenerateRequest(
            token_ids=gateway_pb2.TokenIds(ids=ids),
            sampling=common_pb2.Sampling(temperature=0.0, max_tokens=tokens),
            seed=1,
            mode=f"MODE_{mode.upper()}",
        )
        call: Any = self._stub.Generate(request, metadata=metadata)
        sent = _now()
        count = 0
        try:
            async for message in call:
                if message.HasField("chunk"):
                    chunk = message.chunk
                    size = len(chunk.token_ids)
                    if chunk.first_index != count or list(chunk.token_ids) != expected[count : count + size]:
                        taken.error = "WRONG"
                        return taken
                    count += size
                    taken.chunks.append((_now() - sent, size))
                    if on_tokens is not None:
                        on_tokens(size)
                elif message.HasField("finish"):
                    taken.ledger = message.finish.ledger
        except grpc.aio.AioRpcError as error:
            taken.error = error.code().name
        else:
            if count != tokens:
                taken.error = "WRONG"
        finally:
            call.cancel()
        return taken


def _now() -> float:
    return asyncio.get_running_loop().time()
