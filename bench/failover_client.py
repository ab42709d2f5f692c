"""A client that watches what it gets: indices, the longest silence, and where to go on after a gateway is lost."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from dartspec.services.common.channel import open_channel
from dartspec.services.common.errors import InternalError
from dartspec.v1 import common_pb2, gateway_pb2, gateway_pb2_grpc

PATIENCE_SECONDS = 60.0


@dataclass
class Got:
    """An answer, or the part of it that has come. longest_gap_s: between two messages, the request being the first."""

    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    start: gateway_pb2.GenerateStart | None = None
    finish: gateway_pb2.GenerateFinish | None = None
    longest_gap_s: float = 0.0

    def same(self, other: Got) -> bool:
        """Whether both are whole, with the same tokens, text and reason to end."""
        ends = [got.finish.reason for got in (self, other) if got.finish is not None]
        return len(ends) == 2 and ends[0] == ends[1] and (self.token_ids, self.text) == (other.token_ids, other.text)


def request(prompt: str, mode: str, tokens: int) -> gateway_pb2.GenerateRequest:
    """A sampled answer of exactly so many tokens."""
    sampling = common_pb2.Sampling(temperature=0.9, max_tokens=tokens, ignore_eos=True)
    return gateway_pb2.GenerateRequest(text=prompt, sampling=sampling, seed=11, mode=f"MODE_{mode.upper()}")


def resumption(asked: gateway_pb2.GenerateRequest, got: Got) -> gateway_pb2.GenerateRequest:
    """What asks another gateway for the rest."""
    again = gateway_pb2.GenerateRequest()
    again.CopyFrom(asked)
    if got.start is not None:
        again.seed = got.start.seed
        again.sampling.CopyFrom(got.start.sampling)
    again.committed_token_ids.extend(got.token_ids)
    return again


async def answer(
    gateway: str,
    asked: gateway_pb2.GenerateRequest,
    got: Got | None = None,
    on_chunk: Callable[[Got], Awaitable[None]] | None = None,
) -> Got:
    """The answer, or its rest, added to ``got``; ``on_chunk`` is called after each chunk.

    Raises InternalError when tokens are skipped or repeated, or when there is more or less than one start and one end;
    AioRpcError as the gateway does.
    """
    got = got or Got()
    kinds: list[str] = []
    heard = time.monotonic()
    async with open_channel(gateway) as channel:
        async for message in gateway_pb2_grpc.GatewayServiceStub(channel).Generate(asked, timeout=PATIENCE_SECONDS):
            now = time.monotonic()
            got.longest_gap_s, heard = max(got.longest_gap_s, now - heard), now
            kinds.append(message.WhichOneof("kind"))
            if message.HasField("start"):
                got.start = message.start
            elif message.HasField("finish"):
                got.finish = message.finish
            else:
                if message.chunk.first_index != len(got.token_ids):
                    raise InternalError(f"index {message.chunk.first_index} came where {len(got.token_ids)} was next")
                got.token_ids += message.chunk.token_ids
                got.text += message.chunk.text
                if on_chunk is not None:
                    await on_chunk(got)
    if kinds != ["start", *["chunk"] * (len(kinds) - 2), "finish"]:
        raise InternalError(f"the stream was {', '.join(kinds)}")
    return got


async def until_replicas(gateway: str, count: int) -> None:
    """Wait until the gateway gives new answers to so many verifiers."""
    usable = (gateway_pb2.REPLICA_STATE_READY, gateway_pb2.REPLICA_STATE_TRIAL)
    async with asyncio.timeout(PATIENCE_SECONDS), open_channel(gateway) as channel:
        stub = gateway_pb2_grpc.AdminServiceStub(channel)
        while True:
            listed = await stub.ListReplicas(gateway_pb2.ListReplicasRequest(), wait_for_ready=True)
            if sum(replica.state in usable for replica in listed.replicas) == count:
                return
            await asyncio.sleep(0.02)
