"""DraftService: the head for inspection. The process that serves it says how a prefix is turned into proposals."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import grpc

from dartspec.services.common.errors import FailedPrecondition
from dartspec.services.common.types import Proposals
from dartspec.services.draft.head import DraftHead
from dartspec.v1 import draft_pb2, draft_pb2_grpc, verifier_pb2


class DraftServicer(draft_pb2_grpc.DraftServiceServicer):
    """``feature_layers`` are decoder layers counted from 0.

    ``propose`` takes x[0..n] and the candidates wanted for each offset (0: the server's own number).
    """

    def __init__(
        self,
        head: DraftHead | None,
        hello: verifier_pb2.Hello,
        top_k: int,
        feature_layers: Sequence[int],
        propose: Callable[[Sequence[int], int], Awaitable[Proposals]],
    ) -> None:
        self._head = head
        self._hello = hello
        self._top_k = top_k
        self._feature_layers = feature_layers
        self._propose = propose

    async def Propose(  # noqa: N802 - the name is the protocol's
        self, request: draft_pb2.ProposeRequest, context: grpc.aio.ServicerContext
    ) -> draft_pb2.ProposeResponse:
        self._loaded()
        proposals = await self._propose(request.token_ids, request.top_k)
        return draft_pb2.ProposeResponse(
            offsets=[
                draft_pb2.OffsetCandidates(token_ids=ids.tolist(), logprobs=logprobs.tolist())
                for ids, logprobs in zip(proposals.token_ids, proposals.logprobs, strict=True)
            ]
        )

    async def Describe(  # noqa: N802
        self, request: draft_pb2.DraftServiceDescribeRequest, context: grpc.aio.ServicerContext
    ) -> draft_pb2.DraftServiceDescribeResponse:
        head = self._loaded()
        own = [
            value for name, value in head.named_parameters() if name != "lm_head.weight" or not head.lm_head_is_target
        ]
        return draft_pb2.DraftServiceDescribeResponse(
            head_fingerprint=self._hello.head_fingerprint,
            target_fingerprint=head.config.target_fingerprint,
            draft_length=head.config.depth,
            draft_vocab_size=head.config.draft_vocab_size,
            top_k=self._top_k,
            # Layer i's output is entry i + 1 of a transformers hidden_states tuple.
            feature_layers=[layer + 1 for layer in self._feature_layers],
            parameters=sum(value.numel() for value in own),
        )

    def _loaded(self) -> DraftHead:
        if self._head is None:
            raise FailedPrecondition("this verifier runs without a draft head; start it with --head")
        return self._head
