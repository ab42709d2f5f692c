"""What a gateway must know of a model to serve it, fetched from the verifier so that it needs no model files."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from tokenizers import Tokenizer

from dartspec.gateway.detokenize import Vocabulary
from dartspec.gateway.prompt import PromptBuilder
from dartspec.services.common.errors import FailedPrecondition
from dartspec.services.common.fingerprint import tokenizer_fingerprint
from dartspec.v1 import common_pb2, verifier_pb2, verifier_pb2_grpc

CALL_SECONDS = 10.0


@dataclass(frozen=True)
class TokenizerParts:
    """The tokenizer's two directions."""

    prompts: PromptBuilder
    vocabulary: Vocabulary


@dataclass(frozen=True)
class Model:
    """A model as one verifier serves it. Verifiers with equal ``key`` give equal tokens to equal requests."""

    name: str
    key: tuple[str, ...]
    fingerprint: str
    tokenizer_fingerprint: str
    context_length: int
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    default_sampling: common_pb2.Sampling
    has_head: bool
    max_nodes: int
    tokenizer: TokenizerParts


class ModelSource:
    """Asks verifiers what they serve; keeps tokenizers, which take long to load."""

    def __init__(self) -> None:
        self._tokenizers: dict[tuple[str, str], TokenizerParts] = {}

    async def fetch(
        self, stub: verifier_pb2_grpc.VerifierServiceStub
    ) -> tuple[Model, verifier_pb2.VerifierServiceDescribeResponse]:
        """The verifier's model and its whole description."""
        described = await stub.Describe(verifier_pb2.VerifierServiceDescribeRequest(), timeout=CALL_SECONDS)
        hello = described.hello
        # The name of the weights is part of the key: the same vocabulary may be cut differently for another model.
        cached = (hello.model_fingerprint, hello.tokenizer_fingerprint)
        if cached not in self._tokenizers:
            self._tokenizers[cached] = await _fetch_tokenizer(stub, described)
        model = Model(
            name=described.model,
            key=(described.model, *cached, hello.sampler, described.dtype),
            fingerprint=hello.model_fingerprint,
            tokenizer_fingerprint=hello.tokenizer_fingerprint,
            context_length=described.context_length,
            vocab_size=described.vocab_size,
            eos_token_ids=tuple(described.eos_token_ids),
            default_sampling=described.default_sampling,
            has_head=described.draft_length > 0,
            max_nodes=described.max_nodes,
            tokenizer=self._tokenizers[cached],
        )
        return model, described


async def _fetch_tokenizer(
    stub: verifier_pb2_grpc.VerifierServiceStub, described: verifier_pb2.VerifierServiceDescribeResponse
) -> TokenizerParts:
    parts = [m async for m in stub.GetTokenizer(verifier_pb2.GetTokenizerRequest(), timeout=CALL_SECONDS)]
    if not parts:
        raise FailedPrecondition("the verifier sent no tokenizer")
    text = b"".join(part.tokenizer_json for part in parts)
    vocabulary, fingerprint = await asyncio.to_thread(_load, text)
    expected = described.hello.tokenizer_fingerprint
    if fingerprint != expected:
        raise FailedPrecondition(f"the verifier's tokenizer has fingerprint {fingerprint}, it announces {expected}")
    template, special_tokens = parts[0].chat_template, parts[0].special_tokens
    prompts = PromptBuilder(vocabulary.tokenizer, template, special_tokens, described.vocab_size)
    return TokenizerParts(prompts, vocabulary)


def _load(text: bytes) -> tuple[Vocabulary, str]:
    try:
        tokenizer = Tokenizer.from_str(text.decode())
    except Exception as error:  # the library raises bare Exception
        raise FailedPrecondition(f"the verifier's tokenizer.json cannot be read: {error}") from error
    # A file may ask for truncation or padding, which belongs to training batches and would spoil prompts.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return Vocabulary(tokenizer), tokenizer_fingerprint(tokenizer.get_vocab(with_added_tokens=True))
