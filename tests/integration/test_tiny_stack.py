"""A tiny model through the real processes: identity without exception, refusals, and the calls of the README."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import math

import grpc
import pytest
from google.protobuf import struct_pb2
from google.rpc import error_details_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from grpc_status import rpc_status

from dartspec.cli.client import GatewayClient
from dartspec.cli.request_settings import RequestSettings
from dartspec.cli.stack import Stack
from dartspec.services.common.channel import open_channel
from dartspec.services.draft.texts.gateway_writer import GatewayWriter
from dartspec.services.draft.texts.own_prompts import own_jobs
from dartspec.services.draft.texts.plan import plan
from dartspec.services.draft.texts.prompts import Prompt
from dartspec.services.draft.texts.settings import GenerateSettings
from dartspec.services.draft.texts.write import Writer
from dartspec.services.verifier.engine_writer import engine_writer
from dartspec.v1 import common_pb2, draft_pb2, draft_pb2_grpc, gateway_pb2, gateway_pb2_grpc, ngram_pb2, ngram_pb2_grpc
from tests.unit.gateway.http_client import send

from .conftest import tiny_stack_log
from .tiny_model import CONTEXT, TinyModel

pytestmark = pytest.mark.asyncio(loop_scope="module")

TEMPERATURES = (0.0, 0.7, 1.3)


def ids(*values: int) -> gateway_pb2.TokenIds:
    return gateway_pb2.TokenIds(ids=values)


async def test_tokens_are_those_of_plain_decoding(tiny_stack: Stack) -> None:
    """Many answers at once, so that sessions of different parameters share every stream."""

    async def both(client: GatewayClient, number: int) -> tuple[int, int, int]:
        settings = RequestSettings(
            max_tokens=60,
            temperature=TEMPERATURES[number % 3],
            seed=number,
            top_k=(None, 40, None, 7)[number % 4],
            top_p=(None, None, 0.9)[number % 3],
            raw=True,
        )
        prompt = f"prompt {number} " + "hello world " * (number % 5)
        plain, dart = await asyncio.gather(
            client.answer(prompt, dataclasses.replace(settings, mode="plain")),
            client.answer(prompt, dataclasses.replace(settings, mode="dart")),
        )
        assert plain.token_ids == dart.token_ids
        assert plain.text == dart.text
        assert plain.reason == dart.reason
        assert plain.ledger.dart_rounds == 0
        assert (plain.ledger.draft_ms, plain.ledger.search_ms) == (0.0, 0.0)
        return dart.ledger.dart_rounds, len(dart.token_ids), dart.ledger.chain_fallbacks

    async with GatewayClient(tiny_stack.gateway) as client:
        results = await asyncio.gather(*(both(client, number) for number in range(24)))
    rounds, tokens, without_search = (sum(values) for values in zip(*results, strict=True))
    # On a machine that is busy with other things a search may come too late.
    assert without_search < rounds / 2
    assert tokens > 600
    assert 0 < rounds < tokens


async def test_auto_mode_gives_the_same_tokens(tiny_stack: Stack) -> None:
    settings = RequestSettings(max_tokens=80, temperature=1.0, seed=3, raw=True)
    async with GatewayClient(tiny_stack.gateway) as client:
        answers = [
            await client.answer("hello", dataclasses.replace(settings, mode=mode)) for mode in ("plain", "auto", "dart")
        ]
    assert len({answer.token_ids for answer in answers}) == 1


async def test_log_probabilities_are_the_same_in_every_mode(tiny_stack: Stack) -> None:
    settings = RequestSettings(max_tokens=60, temperature=0.8, seed=5, raw=True, top_logprobs=4)
    async with GatewayClient(tiny_stack.gateway) as client:
        plain, dart = [
            await client.answer("hello", dataclasses.replace(settings, mode=mode)) for mode in ("plain", "dart")
        ]
    assert plain.token_ids == dart.token_ids
    assert len(plain.top_logprobs) == len(plain.token_ids)
    assert plain.logprobs == pytest.approx(dart.logprobs, abs=1e-3)
    for ours, theirs in zip(plain.top_logprobs, dart.top_logprobs, strict=True):
        assert [value for _, value in ours] == pytest.approx([value for _, value in theirs], abs=1e-3)
        assert [value for _, value in ours] == sorted((value for _, value in ours), reverse=True)
        assert sum(math.exp(value) for _, value in ours) <= 1.0 + 1e-5


async def test_draft_propose_answers(tiny_stack: Stack, tiny: TinyModel) -> None:
    async with open_channel(tiny_stack.verifiers[0]) as channel:
        stub = draft_pb2_grpc.DraftServiceStub(channel)
        described = await stub.Describe(draft_pb2.DraftServiceDescribeRequest())
        assert (described.draft_length, described.draft_vocab_size) == (8, tiny.vocab_size)
        assert list(described.feature_layers) == [2, 4, 5]
        answer = await stub.Propose(draft_pb2.ProposeRequest(token_ids=[1, 2, 3], top_k=5))
        assert len(answer.offsets) == 8
        for offset in answer.offsets:
            assert len(set(offset.token_ids)) == 5
            assert list(offset.logprobs) == sorted(offset.logprobs, reverse=True)
            assert sum(math.exp(value) for value in offset.logprobs) <= 1.0 + 1e-5


@pytest.mark.parametrize("kind", ["gateway", "verifier", "ngram"])
async def test_health_and_reflection(tiny_stack: Stack, kind: str) -> None:
    addresses = {"gateway": tiny_stack.gateway, "verifier": tiny_stack.verifiers[0], "ngram": tiny_stack.ngram}
    services = {
        "gateway": "dartspec.v1.GatewayService",
        "verifier": "dartspec.v1.VerifierService",
        "ngram": "dartspec.v1.NgramService",
    }
    async with open_channel(str(addresses[kind])) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        for service in ("", services[kind]):
            asked = health_pb2.HealthCheckRequest(service=service)
            assert (await health.Check(asked)).status == health_pb2.HealthCheckResponse.SERVING
            assert (await health.Watch(asked).read()).status == health_pb2.HealthCheckResponse.SERVING
        reflection = reflection_pb2_grpc.ServerReflectionStub(channel)
        call = reflection.ServerReflectionInfo(iter([reflection_pb2.ServerReflectionRequest(list_services="")]))
        async for response in call:
            names = {service.name for service in response.list_services_response.service}
            assert services[kind] in names
            break


async def test_ngram_refuses_another_tokenizer(tiny_stack: Stack) -> None:
    async with open_channel(str(tiny_stack.ngram)) as channel:
        stub = ngram_pb2_grpc.NgramServiceStub(channel)
        query = ngram_pb2.ScoreQuery(context=[1], candidates=[2])
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Score(ngram_pb2.ScoreRequest(tokenizer_fingerprint="0" * 32, queries=[query]))
        assert caught.value.code() == grpc.StatusCode.NOT_FOUND


def sampling(**fields: object) -> common_pb2.Sampling:
    return common_pb2.Sampling(**{"max_tokens": 4, **fields})  # type: ignore[arg-type]


BAD = {
    "empty text": ({"text": ""}, "text"),
    "empty ids": ({"token_ids": gateway_pb2.TokenIds()}, "token_ids"),
    "no input": ({}, "input"),
    "unknown id": ({"token_ids": ids(1, 5000)}, "token_ids"),
    "negative temperature": ({"text": "a", "sampling": sampling(temperature=-1.0)}, "sampling.temperature"),
    "NaN temperature": ({"text": "a", "sampling": sampling(temperature=math.nan)}, "sampling.temperature"),
    "no tokens wanted": ({"text": "a", "sampling": sampling(max_tokens=0)}, "sampling.max_tokens"),
    "top_p": ({"text": "a", "sampling": sampling(top_p=1.5)}, "sampling.top_p"),
    "long prompt": ({"token_ids": ids(*[1] * CONTEXT)}, "token_ids"),
    "tools": ({"text": "a", "tools": [struct_pb2.Struct()]}, "tools"),
    "response format": ({"text": "a", "response_format": struct_pb2.Struct()}, "response_format"),
    "empty stop": ({"text": "a", "stop": [""]}, "stop[0]"),
}


@pytest.mark.parametrize("name", BAD)
async def test_bad_input_names_the_field_and_harms_nobody(tiny_stack: Stack, name: str) -> None:
    fields, wrong = BAD[name]
    async with open_channel(tiny_stack.gateway) as channel:
        stub = gateway_pb2_grpc.GatewayServiceStub(channel)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            async for _ in stub.Generate(gateway_pb2.GenerateRequest(**fields)):  # type: ignore[arg-type]
                pass
        error = caught.value
        assert error.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert wrong in str(error.details())
        status = rpc_status.from_call(error)
        assert status is not None
        detail = error_details_pb2.BadRequest()
        assert status.details[0].Unpack(detail)
        assert detail.field_violations[0].field == wrong
        good = gateway_pb2.GenerateRequest(text="a", sampling=sampling(temperature=0.0))
        kinds = [message.WhichOneof("kind") async for message in stub.Generate(good)]
        assert (kinds[0], kinds[-1]) == ("start", "finish")


SECRET = "marzipan"


async def test_logs_hold_ids_of_requests_and_nothing_that_anybody_wrote(tiny_stack: Stack) -> None:
    sampling = common_pb2.Sampling(temperature=0.0, max_tokens=12)
    good = gateway_pb2.GenerateRequest(text=SECRET * 3, request_id="id-of-good", sampling=sampling, stop=[SECRET])
    bad = gateway_pb2.GenerateRequest(text=SECRET * 500, request_id="id-of-bad", sampling=sampling)
    async with open_channel(tiny_stack.gateway) as channel:
        stub = gateway_pb2_grpc.GatewayServiceStub(channel)
        for mode in (gateway_pb2.MODE_PLAIN, gateway_pb2.MODE_DART):
            good.mode = mode
            async for message in stub.Generate(good):
                if message.HasField("start"):
                    ids = list(message.start.prompt_token_ids)
        with pytest.raises(grpc.aio.AioRpcError):
            await stub.Generate(bad).read()
    url = f"{tiny_stack.http}/v1/chat/completions"
    body = {"messages": [{"role": "user", "content": SECRET}], "max_tokens": 4, "request_id": "id-of-chat"}
    status, _, _ = await send(url, body)
    assert status == 200
    status, _, _ = await send(url, {**body, SECRET: 1})
    assert status == 400
    status, _, _ = await send(url, json.dumps(body).encode()[:-3])
    assert status == 400
    log = "\n".join(tiny_stack_log)
    for request_id in ("id-of-good", "id-of-bad", "id-of-chat"):
        assert request_id in log
    assert SECRET not in log
    for written in (str(ids)[1:-1], " ".join(map(str, ids))):
        assert written not in log


async def test_engine_and_gateway_write_the_same_texts_to_train_on(tiny: TinyModel, tiny_stack: Stack) -> None:
    prompts = [Prompt.user("hello there"), Prompt(text="a plain text"), Prompt.user("x" * CONTEXT)]
    prompts.append(Prompt(messages=(("system", "be brief"), ("user", "hello"))))

    def texts(writer: Writer) -> dict[int, tuple[list[int], list[int], bool]]:
        jobs = [*plan(prompts, (0.0, 0.9), seed=3), *own_jobs(writer.chat_prefix(), 6, seed=3)]
        named = [dataclasses.replace(job, index=number) for number, job in enumerate(jobs)]
        return {
            text.job.index: (list(text.prompt_ids if text.answer_ids else ()), list(text.answer_ids), text.ended)
            for text in writer.write(named)
        }

    def near() -> tuple[dict[int, tuple[list[int], list[int], bool]], tuple[str, str]]:
        settings = GenerateSettings(model=str(tiny.model), dtype="float32", threads=1, rows=4, max_new=24, capacity=120)
        with engine_writer(settings) as writer:
            return texts(writer), (writer.target.fingerprint, writer.target.tokenizer_fingerprint)

    def far() -> tuple[dict[int, tuple[list[int], list[int], bool]], tuple[str, str]]:
        with GatewayWriter(tiny_stack.gateway, "", 4, 24, 120, {}) as writer:
            return texts(writer), (writer.target.fingerprint, writer.target.tokenizer_fingerprint)

    written = await asyncio.to_thread(near)
    assert written == await asyncio.to_thread(far)
    assert len(written[0]) == 14
    assert sum(not answer for _, answer, _ in written[0].values()) == 2  # the prompt that is too long
