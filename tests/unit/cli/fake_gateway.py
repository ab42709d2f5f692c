"""A gateway that answers from a script, over real gRPC."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from dartspec.services.common.convert import top_logprobs_to_proto
from dartspec.services.common.errors import DartspecError
from dartspec.services.common.server import Server
from dartspec.v1 import common_pb2, gateway_pb2, gateway_pb2_grpc

DART_LEDGER = {
    "mode": gateway_pb2.MODE_DART,
    "dart_rounds": 2,
    "plain_steps": 0,
    "dart_committed": 5,
    "accepted": 3,
    "nodes_offered": 16,
    "nodes_verified": 12,
    "draft_ms": 2.0,
    "search_ms": 1.0,
    "verify_ms": 40.0,
    "wait_ms": 0.5,
    "other_ms": 4.0,
    "decode_ms": 50.0,
}
PLAIN_LEDGER = {"mode": gateway_pb2.MODE_PLAIN, "plain_steps": 4, "verify_ms": 95.0, "decode_ms": 100.0}


@dataclass
class FakeGateway(gateway_pb2_grpc.GatewayServiceServicer):
    """Answers with the ids of the request's mode, two a chunk, as the text "<id> "; keeps the requests."""

    answers: Mapping[int, Sequence[int]] = field(
        default_factory=lambda: {
            gateway_pb2.MODE_AUTO: [5, 6, 7, 8, 9],
            gateway_pb2.MODE_PLAIN: [5, 6, 7, 8, 9],
            gateway_pb2.MODE_DART: [5, 6, 7, 8, 9],
        }
    )
    error: DartspecError | None = None
    late_error: DartspecError | None = None
    margin: float = 0.25
    hangs: bool = False
    requests: list[gateway_pb2.GenerateRequest] = field(default_factory=list)

    async def Generate(self, request: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802
        self.requests.append(request)
        if self.error is not None:
            raise self.error
        if self.hangs:
            await asyncio.sleep(60)
        mode = request.mode or gateway_pb2.MODE_AUTO
        ids = list(self.answers[mode])[: request.sampling.max_tokens]
        seed = request.seed if request.HasField("seed") else 1234
        yield gateway_pb2.GenerateResponse(
            start=gateway_pb2.GenerateStart(model="fake", seed=seed, prompt_token_ids=[1, 2, 3])
        )
        for first in range(0, len(ids), 2):
            part = ids[first : first + 2]
            width = request.sampling.top_logprobs
            yield gateway_pb2.GenerateResponse(
                chunk=gateway_pb2.GenerateChunk(
                    first_index=first,
                    token_ids=part,
                    logprobs=[-0.5] * len(part),
                    margins=[self.margin] * len(part),
                    top_logprobs=top_logprobs_to_proto(
                        [tuple((token + i, -0.5 - i) for i in range(width)) for token in part] if width else []
                    ),
                    text="".join(f"{token} " for token in part),
                )
            )
        if self.late_error is not None:
            raise self.late_error
        ledger = PLAIN_LEDGER if request.mode == gateway_pb2.MODE_PLAIN else DART_LEDGER
        yield gateway_pb2.GenerateResponse(
            finish=gateway_pb2.GenerateFinish(
                reason=common_pb2.FINISH_REASON_LENGTH, ledger=gateway_pb2.Ledger(**ledger)
            )
        )


@asynccontextmanager
async def serving(gateway: FakeGateway) -> AsyncIterator[str]:
    """Its address for as long as the block runs."""
    server = Server(["dartspec.v1.GatewayService"])
    gateway_pb2_grpc.add_GatewayServiceServicer_to_server(gateway, server.grpc_server)
    (address,) = await server.start(["127.0.0.1:0"])
    await server.ready()
    try:
        yield address
    finally:
        await server.stop(0)
