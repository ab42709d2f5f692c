"""VerifierService over a synthetic engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from bench.synthetic_verifier.engine import Stream, SyntheticEngine
from bench.synthetic_verifier.model import EOS, TOKENIZER, VOCAB_SIZE
from dartspec.services.common.errors import FailedPrecondition
from dartspec.services.common.fingerprint import tokenizer_fingerprint
from dartspec.v1 import gateway_pb2, verifier_pb2, verifier_pb2_grpc

MODEL = "synthetic"
CHAT_TEMPLATE = "{% for m in messages %}{{ m.content }}\n{% endfor %}"
HELLO = verifier_pb2.Hello(
    protocol=1,
    model_fingerprint="synthetic",
    tokenizer_fingerprint=tokenizer_fingerprint(TOKENIZER.get_vocab(with_added_tokens=True)),
    head_fingerprint="synthetic",
    sampler="synthetic-1",
)


class SyntheticServicer(verifier_pb2_grpc.VerifierServiceServicer):
    """Converts, calls, converts."""

    def __init__(self, engine: SyntheticEngine) -> None:
        self.engine = engine

    async def Describe(self, request: Any, context: Any) -> verifier_pb2.VerifierServiceDescribeResponse:  # noqa: N802
        behaviour = self.engine.behaviour
        return verifier_pb2.VerifierServiceDescribeResponse(
            hello=HELLO,
            model=MODEL,
            architecture="synthetic",
            dtype="float32",
            device="none",
            context_length=behaviour.context_length,
            vocab_size=VOCAB_SIZE,
            eos_token_ids=[EOS],
            draft_length=behaviour.draft_length,
            max_sessions=behaviour.max_sessions,
            max_nodes=64,
            load=self.engine.load(),
        )

    async def GetTokenizer(self, request: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802
        yield verifier_pb2.GetTokenizerResponse(
            tokenizer_json=TOKENIZER.to_str().encode(),
            chat_template=CHAT_TEMPLATE,
            special_tokens={"eos_token": "<eos>"},
            fingerprint=HELLO.tokenizer_fingerprint,
        )

    async def Rounds(self, requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:  # noqa: N802
        first = await anext(aiter(requests))
        if first.hello != HELLO:
            raise FailedPrecondition("the hello is another verifier's")
        stream = Stream()
        yield verifier_pb2.RoundsResponse(hello=HELLO, load=self.engine.load())
        self.engine.streams.add(stream)
        reader = asyncio.create_task(self._read(requests, stream))
        reader.add_done_callback(lambda _: stream.end())
        try:
            while not reader.done() and (message := await stream.outgoing.get()) is not None:
                yield message
            reader.result()
        finally:
            self.engine.streams.discard(stream)
            reader.cancel()

    async def _read(self, requests: AsyncIterator[Any], stream: Stream) -> None:
        loop = asyncio.get_running_loop()
        async for request in requests:
            now = loop.time()
            for command in request.commands:
                if command.HasField("open"):
                    prompt = TOKENIZER.decode(list(command.open.token_ids[: command.open.prompt_len]))
                    self.engine.open(stream, command.session, command, prompt, now)
                else:
                    self.engine.take(stream, command, now)


def record(engine: SyntheticEngine, address: str) -> gateway_pb2.ServiceRecord:
    """What the replica announces."""
    return gateway_pb2.ServiceRecord(
        kind=gateway_pb2.SERVICE_KIND_VERIFIER,
        address=address,
        node="synthetic",
        model=MODEL,
        tokenizer_fingerprints=[HELLO.tokenizer_fingerprint],
        model_fingerprint=HELLO.model_fingerprint,
        max_sessions=engine.behaviour.max_sessions,
        load=engine.load(),
        draining=engine.draining,
    )
