"""API keys on both fronts: who gets in, how much at once, and that nobody needs one to see whether we live."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc
import openai
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from dartspec.cli.client import GatewayClient
from dartspec.cli.request_settings import RequestSettings
from dartspec.gateway.api_keys import ApiKeys
from dartspec.services.common.announce import announce_forever
from dartspec.services.common.channel import error_from_rpc, open_channel
from dartspec.services.common.errors import InvalidArgument, Unauthenticated
from dartspec.v1 import gateway_pb2
from tests.fakes import FakeVerifier, serving
from tests.unit.gateway.conftest import StackMaker, collect, until
from tests.unit.gateway.http_client import MESSAGES, get_text, http_stack, send

KEYS = "# those who may\n\nann: sk-ann \nbob:sk:bob\n"


@pytest.fixture
def keys_file(tmp_path: Path) -> str:
    path = tmp_path / "keys"
    path.write_text(KEYS)
    return str(path)


def test_keys_of_a_file(keys_file: str) -> None:
    keys = ApiKeys.read(keys_file)
    assert keys.client("Bearer sk-ann") == "ann"
    assert keys.client("bearer  sk:bob") == "bob"
    for wrong in ["", "Bearer", "Bearer ", "sk-ann", "Basic sk-ann", "Bearer sk-an", "Bearer sk-annn", "Bearer \udce9"]:
        with pytest.raises(Unauthenticated):
            keys.client(wrong)
    assert ApiKeys.read("").client("") == ApiKeys.read("").client("Bearer anything") == ""


@pytest.mark.parametrize(
    ("text", "line"),
    [("ann", 1), ("ann:", 1), ("\n:key", 2), ("ann:a b", 1), ("ann:é", 1), ("a:k\na:l", 2), ("a:k\nb:k", 2)],
)
def test_lines_that_are_no_key(tmp_path: Path, text: str, line: int) -> None:
    (tmp_path / "keys").write_text(text)
    with pytest.raises(InvalidArgument, match=f"line {line}") as failure:
        ApiKeys.read(str(tmp_path / "keys"))
    assert failure.value.field == "--api-keys-file"


def test_files_without_keys(tmp_path: Path) -> None:
    (tmp_path / "none").write_text("# nobody\n")
    (tmp_path / "binary").write_bytes(b"a:\xff")
    for path, said in [("none", "holds no key"), ("binary", "cannot read"), ("missing", "cannot read")]:
        with pytest.raises(InvalidArgument, match=said):
            ApiKeys.read(str(tmp_path / path))


async def test_http_wants_a_key(stack: StackMaker, keys_file: str) -> None:
    async with http_stack(stack, [FakeVerifier()], api_keys_file=keys_file) as (s, client):
        for key in ("none", "sk-an"):
            with pytest.raises(openai.AuthenticationError) as failure:
                await client.with_options(api_key=key).chat.completions.create(model="toy", messages=MESSAGES)
            assert failure.value.code == "invalid_api_key"
            assert key not in failure.value.message
        status, _, _ = await send(f"{s.gateway.http}/v1/models", method="GET")
        assert status == 401
        for path in ("/healthz", "/readyz", "/metrics"):
            assert (await get_text(s.gateway.http + path))[0] == 200
        known = client.with_options(api_key="sk-ann")
        assert (await known.models.list()).data[0].id == "toy"
        assert (await known.completions.create(model="toy", prompt="x")).choices


async def test_grpc_wants_a_key_except_for_health_and_reflection(stack: StackMaker, keys_file: str) -> None:
    async with stack([FakeVerifier()], api_keys_file=keys_file) as s:
        request = gateway_pb2.GenerateRequest(text="x")
        for metadata in [(), (("authorization", "Bearer no"),)]:
            for call in (
                s.stub.Generate(request, metadata=metadata).read(),
                s.registry.Announce(gateway_pb2.AnnounceRequest(), metadata=metadata),
            ):
                with pytest.raises(grpc.aio.AioRpcError) as failure:
                    await call
                assert failure.value.code() == grpc.StatusCode.UNAUTHENTICATED
        reply = await collect(s.stub.Generate(request, metadata=(("authorization", "Bearer sk-ann"),)))
        assert reply.ids
        async with open_channel(s.gateway.addresses[0]) as channel:
            health = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())
            assert health.status == health_pb2.HealthCheckResponse.SERVING
            asked = reflection_pb2.ServerReflectionRequest(list_services="")
            listed = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(iter([asked]))
            assert (await listed.read()).list_services_response.service


async def test_each_key_has_its_own_limit_on_both_fronts(stack: StackMaker, keys_file: str) -> None:
    verifier = FakeVerifier()
    verifier.hang_after_events = 0
    async with http_stack(stack, [verifier], api_keys_file=keys_file, max_requests_per_key=2) as (s, client):
        ann, bob = (client.with_options(api_key=key) for key in ("sk-ann", "sk:bob"))
        metadata = (("authorization", "Bearer sk-ann"),)

        def ask(who: Any, n: int = 1) -> Any:
            return who.chat.completions.create(model="toy", messages=MESSAGES, n=n)

        def call() -> Any:
            return s.stub.Generate(gateway_pb2.GenerateRequest(text="x"), metadata=metadata)

        first, second = asyncio.create_task(ask(ann)), call()
        assert (await second.read()).WhichOneof("kind") == "start"
        await until(lambda: len(verifier.opens) == 2)
        with pytest.raises(openai.RateLimitError) as failure:
            await ask(ann)
        assert failure.value.response.headers["retry-after"] == "1"
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call().read()
        error = error_from_rpc(refused.value, "gateway")
        assert (error.code, error.retry_after_ms) == (grpc.StatusCode.RESOURCE_EXHAUSTED, 1000)
        others = asyncio.create_task(ask(bob, n=2))
        await until(lambda: len(verifier.sessions) == 4)
        with pytest.raises(openai.RateLimitError):
            await ask(bob)
        for task in (first, others):
            task.cancel()
        second.cancel()
        await until(lambda: not verifier.sessions and not s.gateway.generation.open_requests)
        with pytest.raises(openai.RateLimitError):
            await ask(ann, n=3)
        await until(lambda: not verifier.sessions and not s.gateway.generation.open_requests)


async def test_commands_and_services_show_the_key_of_their_environment(
    stack: StackMaker, keys_file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(FakeVerifier()) as verifier, stack(api_keys_file=keys_file, heartbeat_seconds=0.1) as s:
        record = gateway_pb2.ServiceRecord(kind=gateway_pb2.SERVICE_KIND_VERIFIER, address=verifier)
        address = s.gateway.addresses[0]
        monkeypatch.setenv("DARTSPEC_API_KEY", "sk-ann")
        announcing = asyncio.create_task(announce_forever([address], lambda: record))
        try:
            await until(lambda: s.gateway.fleet.addresses == [verifier])
            async with GatewayClient(address) as client:
                await until_ready(s)
                answer = await client.answer("x", RequestSettings(max_tokens=3))
                assert len(answer.token_ids) == 3
                monkeypatch.delenv("DARTSPEC_API_KEY")
                with pytest.raises(Unauthenticated):
                    await client.answer("x", RequestSettings(max_tokens=3))
        finally:
            announcing.cancel()


async def until_ready(s: Any) -> None:
    from dartspec.gateway.served import ready

    await until(lambda: ready(s.gateway.fleet))
