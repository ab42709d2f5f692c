"""Services without models: `FakeVerifier`, `FakeNgram`, and the toy functions that say what must come out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import numpy as np

from dartspec.services.common.convert import (
    proposals_from_proto,
    tree_to_proto,
)
from dartspec.services.common.server import Server
from dartspec.services.common.tls import ServerTls
from dartspec.services.common.types import Proposals, Tree
from dartspec.v1 import (
    common_pb2,
    ngram_pb2,
    ngram_pb2_grpc,
    verifier_pb2_grpc,
)
from tests.fake_verifier import FakeVerifier
from tests.toy import (
    CHAT_TEMPLATE,
    Target,
    byte_tokenizer,
    hash_target,
    logprob,
    mix,
    plain_answer,
    scripted_target,
    top_tokens,
    walk,
)

__all__ = [
    "CHAT_TEMPLATE",
    "FakeNgram",
    "FakeVerifier",
    "Target",
    "byte_tokenizer",
    "hash_target",
    "logprob",
    "mix",
    "plain_answer",
    "scripted_target",
    "serving",
    "top_tokens",
    "walk",
]


class FakeNgram(ngram_pb2_grpc.NgramServiceServicer):
    """Trees of the first two candidates of each offset under the best path."""

    def __init__(self) -> None:
        self.batches: list[int] = []  # queries in each call
        self.requests: list[ngram_pb2.SearchRequest] = []
        self.trees: list[common_pb2.Tree] = []
        self.streams = 0
        self.fail: grpc.StatusCode | None = None
        self.hang = False

    async def Search(self, request: Any, context: Any) -> ngram_pb2.SearchResponse:  # noqa: N802
        self.batches.append(len(request.queries))
        self.requests.append(request)
        if self.hang:
            await asyncio.Event().wait()
        if self.fail is not None:
            await context.abort(self.fail, "told to fail")
        trees = [tree_to_proto(_tree(proposals_from_proto(query.proposals))) for query in request.queries]
        self.trees += trees
        return ngram_pb2.SearchResponse(trees=trees, search_us=250.0)

    async def SearchStream(  # noqa: N802
        self, requests: AsyncIterator[ngram_pb2.SearchRequest], context: Any
    ) -> AsyncIterator[ngram_pb2.SearchResponse]:
        self.streams += 1
        async for request in requests:
            yield await self.Search(request, context)


def _tree(proposals: Proposals) -> Tree:
    tokens: list[int] = []
    parents: list[int] = []
    parent = 0
    for ids in proposals.token_ids:
        first = len(tokens) + 1
        tokens += [int(ids[0]), int(ids[1])]
        parents += [parent, parent]
        # Where the first of two is wrong, the second may be right: go on below it at every other level.
        parent = first + len(tokens) // 2 % 2
    survival = np.linspace(0.9, 0.1, len(tokens), dtype=np.float32)
    return Tree(np.array(tokens, np.int32), np.array(parents, np.int32), survival, np.zeros(len(tokens), np.uint16))


@asynccontextmanager
async def serving(
    servicer: FakeVerifier | FakeNgram, address: str = "127.0.0.1:0", tls: ServerTls | None = None
) -> AsyncIterator[str]:
    """The fake on a port of its own; gives the address."""
    server = Server([], tls=tls)
    if isinstance(servicer, FakeVerifier):
        verifier_pb2_grpc.add_VerifierServiceServicer_to_server(servicer, server.grpc_server)
    else:
        ngram_pb2_grpc.add_NgramServiceServicer_to_server(servicer, server.grpc_server)
    bound = await server.start([address])
    await server.ready()
    try:
        yield bound[0]
    finally:
        await server.stop(grace=0)
