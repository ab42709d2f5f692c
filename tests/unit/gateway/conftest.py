"""A gateway in this process, in front of fakes, called over gRPC."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc
import pytest

from dartspec.gateway.config import Settings
from dartspec.gateway.pace import Pace
from dartspec.gateway.request import Request
from dartspec.gateway.serve import Gateway, running
from dartspec.services.common.channel import open_channel
from dartspec.services.common.convert import top_logprobs_from_proto
from dartspec.services.common.types import TopTokens
from dartspec.v1 import common_pb2, gateway_pb2, gateway_pb2_grpc
from tests.fakes import FakeNgram, FakeVerifier, serving

SEARCH_MS = 5_000  # no test depends on how fast this machine searches


@dataclass
class Reply:
    """A whole answer as a client sees it."""

    start: gateway_pb2.GenerateStart
    chunks: list[gateway_pb2.GenerateChunk]
    finish: gateway_pb2.GenerateFinish

    @property
    def ids(self) -> list[int]:
        return [token for chunk in self.chunks for token in chunk.token_ids]

    @property
    def logprobs(self) -> list[float]:
        return [value for chunk in self.chunks for value in chunk.logprobs]

    @property
    def top_logprobs(self) -> list[TopTokens]:
        return [entries for chunk in self.chunks for entries in top_logprobs_from_proto(chunk.top_logprobs)]

    @property
    def text(self) -> str:
        return "".join(chunk.text for chunk in self.chunks)


@dataclass
class Stack:
    """A running gateway and a client for it."""

    gateway: Gateway
    stub: gateway_pb2_grpc.GatewayServiceStub
    registry: gateway_pb2_grpc.RegistryServiceStub
    admin: Any = None

    def call(self, timeout: float | None = 30.0, metadata: Any = None, **fields: Any) -> Any:
        """A Generate call; ``sampling`` is a dict; temperature, prompt and seed have defaults, None is absent."""
        sampling = {"temperature": 0.0, "max_tokens": 24, **fields.pop("sampling", {})}
        if not fields.keys() & {"chat", "text", "token_ids"}:
            fields["token_ids"] = gateway_pb2.TokenIds(ids=[1, 2, 3])
        fields = {"seed": 0, **fields}
        request = gateway_pb2.GenerateRequest(sampling=common_pb2.Sampling(**sampling), **fields)
        return self.stub.Generate(request, timeout=timeout, metadata=metadata)

    async def generate(self, **fields: Any) -> Reply:
        """A whole answer; fails unless it is one start, chunks without gap or repetition, one finish."""
        return await collect(self.call(**fields), first_index=len(fields.get("committed_token_ids", ())))


async def collect(call: Any, first_index: int = 0) -> Reply:
    """The rest of a call. Raises its AioRpcError."""
    messages = []
    while (message := await call.read()) is not grpc.aio.EOF:
        messages.append(message)
    kinds = [message.WhichOneof("kind") for message in messages]
    assert kinds == ["start", *["chunk"] * (len(kinds) - 2), "finish"]
    reply = Reply(messages[0].start, [m.chunk for m in messages[1:-1]], messages[-1].finish)
    for chunk in reply.chunks:
        assert chunk.first_index == first_index
        assert len(chunk.token_ids) == len(chunk.logprobs) == len(chunk.margins)
        width = messages[0].start.sampling.top_logprobs
        assert len(chunk.top_logprobs.token_ids) == len(chunk.top_logprobs.logprobs) == width * len(chunk.token_ids)
        assert chunk.HasField("top_logprobs") == (width > 0 and len(chunk.token_ids) > 0)
        first_index += len(chunk.token_ids)
    assert reply.finish.usage.completion_tokens == first_index
    assert reply.finish.usage.prompt_tokens == len(reply.start.prompt_token_ids)
    return reply


async def until(condition: Callable[[], bool]) -> None:
    """Fails with the test's own time-out rather than with a number here."""
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.005)


def recorded(s: Stack, monkeypatch: pytest.MonkeyPatch) -> list[Request]:
    """The requests that the gateway answers from now on."""
    seen: list[Request] = []
    generate = s.gateway.generation.generate

    def recording(request: Request, *others: Any) -> Any:
        seen.append(request)
        return generate(request, *others)

    monkeypatch.setattr(s.gateway.generation, "generate", recording)
    return seen


StackMaker = Callable[..., Any]


@pytest.fixture
def stack() -> StackMaker:
    """``async with stack(verifiers, ngrams, **settings) as running_stack``."""

    @asynccontextmanager
    async def make(
        verifiers: Sequence[FakeVerifier | str] = (),
        ngrams: Sequence[FakeNgram | str] = (),
        **settings: Any,
    ) -> AsyncIterator[Stack]:
        async with AsyncExitStack() as exits:

            async def address(service: FakeVerifier | FakeNgram | str) -> str:
                return service if isinstance(service, str) else await exits.enter_async_context(serving(service))

            chosen = {"search_timeout_ms": SEARCH_MS, "listen": ("127.0.0.1:0",), "queue_seconds": 0.0, **settings}
            complete = Settings(
                verifier=tuple([await address(service) for service in verifiers]),
                ngram=tuple([await address(service) for service in ngrams]),
                **chosen,
            )
            gateway = await exits.enter_async_context(running(complete))
            gateway.generation.pace = Pace()  # never busy, so that chunks are rounds however slow this machine is
            channel = await exits.enter_async_context(open_channel(gateway.addresses[0]))
            yield Stack(
                gateway,
                gateway_pb2_grpc.GatewayServiceStub(channel),
                gateway_pb2_grpc.RegistryServiceStub(channel),
                gateway_pb2_grpc.AdminServiceStub(channel),
            )

    return make
