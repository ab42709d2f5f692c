"""Bad requests: the right status, the field's name, and a gateway that answers the next one."""

from __future__ import annotations

from typing import Any

import grpc
import pytest
from google.protobuf import struct_pb2

from dartspec.services.common.channel import error_from_rpc
from dartspec.v1 import common_pb2, gateway_pb2
from tests.fakes import FakeVerifier, byte_tokenizer, plain_answer
from tests.unit.gateway.conftest import StackMaker

EOS = byte_tokenizer().token_to_id("<eos>")
NAN, INF = float("nan"), float("inf")
SCHEMA = struct_pb2.Struct(fields={"type": struct_pb2.Value(string_value="json_object")})


def ids(*values: int) -> gateway_pb2.TokenIds:
    return gateway_pb2.TokenIds(ids=values)


def chat(*roles: str) -> gateway_pb2.Chat:
    return gateway_pb2.Chat(messages=[gateway_pb2.ChatMessage(role=role, content="x") for role in roles])


BAD: list[tuple[str, dict[str, Any]]] = [
    ("input", {"token_ids": None}),
    ("token_ids", {"token_ids": ids()}),
    ("token_ids", {"token_ids": ids(1, 100_000)}),
    ("token_ids", {"token_ids": ids(*[1] * 100)}),
    ("text", {"text": ""}),
    ("text", {"text": "x" * 100}),
    ("chat.messages", {"chat": chat()}),
    ("chat.messages[1].role", {"chat": chat("user", "")}),
    ("chat", {"chat": chat(*["user"] * 50)}),
    ("sampling.temperature", {"sampling": {"temperature": -0.5}}),
    ("sampling.temperature", {"sampling": {"temperature": NAN}}),
    ("sampling.temperature", {"sampling": {"temperature": INF}}),
    ("sampling.max_tokens", {"sampling": {"max_tokens": 0}}),
    ("sampling.top_p", {"sampling": {"top_p": 0.0}}),
    ("sampling.top_p", {"sampling": {"top_p": NAN}}),
    ("sampling.min_p", {"sampling": {"min_p": 1.5}}),
    ("sampling.repetition_penalty", {"sampling": {"repetition_penalty": 0.0}}),
    ("sampling.presence_penalty", {"sampling": {"presence_penalty": 3.0}}),
    ("sampling.logit_bias", {"sampling": {"logit_bias": {5: INF}}}),
    ("sampling.logit_bias", {"sampling": {"logit_bias": {100_000: 1.0}}}),
    ("sampling.stop_token_ids", {"sampling": {"stop_token_ids": [100_000]}}),
    ("sampling.min_tokens", {"sampling": {"min_tokens": 9, "max_tokens": 8}}),
    ("sampling.top_logprobs", {"sampling": {"top_logprobs": 21}}),
    ("sampling.top_logprobs", {"sampling": {"top_logprobs": 2**32 - 1}}),
    ("stop", {"stop": ["x"] * 17}),
    ("stop[1]", {"stop": ["x", ""]}),
    ("stop[0]", {"stop": ["x" * 257]}),
    ("request_id", {"request_id": "x" * 129}),
    ("request_id", {"request_id": "a\nb"}),
    ("tools", {"tools": [struct_pb2.Struct()]}),
    ("response_format", {"response_format": SCHEMA}),
    ("mode", {"mode": 9}),
    ("committed_token_ids", {"committed_token_ids": [100_000]}),
    ("committed_token_ids", {"committed_token_ids": [1] * 25}),
    ("committed_token_ids", {"committed_token_ids": [5, EOS, 6]}),
    ("committed_token_ids", {"committed_token_ids": byte_tokenizer().encode("cdfg").ids, "stop": ["df"]}),
]


async def test_each_bad_request_names_its_field(stack: StackMaker) -> None:
    verifier = FakeVerifier(eos=[EOS], context_length=64)
    expected = plain_answer(verifier.target, [1, 2, 3], 24)
    async with stack([verifier]) as s:
        for field, request in BAD:
            opened = len(verifier.opens)
            with pytest.raises(grpc.aio.AioRpcError) as failure:
                await s.generate(**request)
            error = error_from_rpc(failure.value, "gateway")
            assert (error.code, error.field) == (grpc.StatusCode.INVALID_ARGUMENT, field), (request, error)
            assert error.message.startswith(field)
            assert len(verifier.opens) == opened, "something was opened for a bad request"
            assert (await s.generate()).ids == expected, f"no answer after {request}"
        assert s.gateway.generation.open_requests == 0


async def status_of(call: Any) -> Any:
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await call
    return error_from_rpc(failure.value, "gateway")


async def test_model_names(stack: StackMaker) -> None:
    async with stack([FakeVerifier(model="one", weights="1"), FakeVerifier(model="two", weights="2")]) as s:
        unknown = await status_of(s.generate(model="three"))
        assert unknown.code == grpc.StatusCode.NOT_FOUND
        assert "one, two" in unknown.message
        unnamed = await status_of(s.generate())
        assert (unnamed.code, unnamed.field) == (grpc.StatusCode.INVALID_ARGUMENT, "model")
        assert (await s.generate(model="two")).start.model == "two"


async def test_forced_dart_without_a_head(stack: StackMaker) -> None:
    verifier = FakeVerifier(draft_length=0)
    async with stack([verifier]) as s:
        error = await status_of(s.generate(mode=gateway_pb2.MODE_DART))
        assert (error.code, error.field) == (grpc.StatusCode.FAILED_PRECONDITION, "mode")
        reply = await s.generate(mode=gateway_pb2.MODE_AUTO)
        assert reply.finish.ledger.mode == gateway_pb2.MODE_PLAIN
        assert reply.finish.ledger.mode_reason == "the verifier has no draft head"


async def test_without_any_verifier(stack: StackMaker) -> None:
    async with stack() as s:
        error = await status_of(s.generate())
        assert error.code == grpc.StatusCode.UNAVAILABLE
        assert error.retry_after_ms == 1000


async def test_too_many_requests(stack: StackMaker) -> None:
    verifier = FakeVerifier()
    verifier.hang_after_events = 0
    async with stack([verifier], max_requests=2) as s:
        waiting = [s.call(), s.call()]
        for call in waiting:
            assert (await call.read()).WhichOneof("kind") == "start"
        error = await status_of(s.generate())
        assert error.code == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert error.retry_after_ms == 1000
        for call in waiting:
            call.cancel()


async def test_defaults_come_from_the_model(stack: StackMaker) -> None:
    defaults = common_pb2.Sampling(temperature=0.6, top_k=20, top_p=0.95, repetition_penalty=1.1)
    async with stack([FakeVerifier(default_sampling=defaults)], default_max_tokens=7) as s:
        call = s.stub.Generate(gateway_pb2.GenerateRequest(text="hello"))
        sampling = (await call.read()).start.sampling
        assert (sampling.temperature, sampling.top_k, sampling.top_p) == (0.6, 20, 0.95)
        assert (sampling.repetition_penalty, sampling.max_tokens) == (1.1, 7)
        own = common_pb2.Sampling(temperature=0.0, top_k=0, top_p=0.5, max_tokens=3)
        call = s.stub.Generate(gateway_pb2.GenerateRequest(text="hello", sampling=own))
        sampling = (await call.read()).start.sampling
        assert (sampling.temperature, sampling.top_k, sampling.top_p, sampling.max_tokens) == (0.0, 0, 0.5, 3)


async def test_defaults_where_the_model_says_nothing(stack: StackMaker) -> None:
    async with stack([FakeVerifier(context_length=30)]) as s:
        call = s.stub.Generate(gateway_pb2.GenerateRequest(token_ids=ids(1, 2, 3)))
        sampling = (await call.read()).start.sampling
        assert (sampling.temperature, sampling.top_k, sampling.top_p) == (1.0, 0, 1.0)
        assert sampling.max_tokens == 27  # what the context leaves


async def test_seed_is_reported_and_gives_the_same_answer(stack: StackMaker) -> None:
    async with stack([FakeVerifier()]) as s:
        first = await s.generate(seed=None, sampling={"temperature": 1.0})
        second = await s.generate(seed=None, sampling={"temperature": 1.0})
        assert first.start.seed != second.start.seed
        assert first.ids != second.ids
        again = await s.generate(seed=first.start.seed, sampling={"temperature": 1.0})
        assert again.ids == first.ids
        assert first.start.request_id != second.start.request_id
        largest = await s.generate(seed=2**64 - 1, request_id="mine")
        assert (largest.start.seed, largest.start.request_id) == (2**64 - 1, "mine")


async def test_chat_text_and_ids_give_their_prompts(stack: StackMaker) -> None:
    tokenizer = byte_tokenizer()
    async with stack([FakeVerifier()]) as s:
        text = await s.generate(text="hello wörld")
        assert list(text.start.prompt_token_ids) == tokenizer.encode("hello wörld").ids
        asked = await s.generate(chat=chat("user"))
        assert tokenizer.decode(list(asked.start.prompt_token_ids)) == "<|user|>x\n<|assistant|>"
