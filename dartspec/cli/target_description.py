"""What a verifier says of itself."""

from __future__ import annotations

from dataclasses import dataclass

import grpc

from dartspec.services.common.channel import error_from_rpc, open_channel
from dartspec.v1 import verifier_pb2, verifier_pb2_grpc

CALL_SECONDS = 10.0


@dataclass(frozen=True)
class TargetDescription:
    """The parts of a verifier's Describe that people and reports want. ``draft_length`` is 0 without a head."""

    model: str
    architecture: str
    dtype: str
    device: str
    context_length: int
    vocab_size: int
    invariant: bool
    draft_length: int
    model_fingerprint: str
    tokenizer_fingerprint: str
    head_fingerprint: str
    sampler: str

    def __str__(self) -> str:
        head = f"draft head of {self.draft_length} positions" if self.draft_length else "no draft head"
        rows = ", invariant rows" if self.invariant else ""
        numbers = f"{self.dtype} on {self.device}{rows}, context {self.context_length}"
        return f"{self.model} ({self.architecture}), {numbers}, {head}"


async def describe_target(address: str) -> TargetDescription:
    """Ask the verifier at ``address``. Raises the error that it answers with, or Unavailable."""
    async with open_channel(address) as channel:
        stub = verifier_pb2_grpc.VerifierServiceStub(channel)
        try:
            answer = await stub.Describe(verifier_pb2.VerifierServiceDescribeRequest(), timeout=CALL_SECONDS)
        except grpc.aio.AioRpcError as error:
            raise error_from_rpc(error, f"verifier {address}") from error
    return TargetDescription(
        model=answer.model,
        architecture=answer.architecture,
        dtype=answer.dtype,
        device=answer.device,
        context_length=answer.context_length,
        vocab_size=answer.vocab_size,
        invariant=answer.invariant,
        draft_length=answer.draft_length,
        model_fingerprint=answer.hello.model_fingerprint,
        tokenizer_fingerprint=answer.hello.tokenizer_fingerprint,
        head_fingerprint=answer.hello.head_fingerprint,
        sampler=answer.hello.sampler,
    )
