"""Which models a gateway serves, told alike over gRPC and HTTP."""

from __future__ import annotations

from typing import Any

from dartspec.v1 import gateway_pb2
from tests.fakes import FakeVerifier, serving
from tests.unit.gateway.conftest import Stack, StackMaker, until
from tests.unit.gateway.http_client import http_stack, send


async def over_grpc(stack: Stack) -> list[gateway_pb2.ServedModel]:
    return list((await stack.stub.ListModels(gateway_pb2.ListModelsRequest())).models)


async def over_http(stack: Stack) -> list[dict[str, Any]]:
    _, body, _ = await send(f"{stack.gateway.http}/v1/models", method="GET")
    return body["data"]


async def test_models_with_their_replicas(stack: StackMaker) -> None:
    verifiers = [
        FakeVerifier(model="toy", draft_length=0, context_length=300),
        FakeVerifier(model="toy", context_length=300),
        FakeVerifier(model="other", draft_length=0, weights="others", context_length=77),
    ]
    gone = serving(verifiers[1])
    address = await gone.__aenter__()
    async with http_stack(stack, [verifiers[0], address, verifiers[2]]) as (s, _):
        (drains,) = [link.address for link in s.gateway.fleet.links if link.model and link.model.name == "other"]
        await s.admin.DrainReplica(gateway_pb2.DrainReplicaRequest(address=drains))
        toy = gateway_pb2.ServedModel(
            name="toy",
            model_fingerprint="weights",
            tokenizer_fingerprint=verifiers[0].hello.tokenizer_fingerprint,
            context_length=300,
            vocab_size=verifiers[0].vocab_size,
            has_head=True,
            ready_replicas=2,
            replicas=2,
        )
        other = gateway_pb2.ServedModel()
        other.CopyFrom(toy)
        other.name, other.model_fingerprint, other.context_length = "other", "others", 77
        other.has_head, other.ready_replicas, other.replicas = False, 0, 1
        assert await over_grpc(s) == [other, toy]
        await gone.__aexit__(None, None, None)
        await until(lambda: sum(link.up for link in s.gateway.fleet.links) == 2)
        toy.ready_replicas = 1
        assert await over_grpc(s) == [other, toy]
        shown = {model["id"]: (model["max_model_len"], model["dartspec"]) for model in await over_http(s)}
        assert shown == {
            model.name: (
                model.context_length,
                {
                    "model_fingerprint": model.model_fingerprint,
                    "tokenizer_fingerprint": model.tokenizer_fingerprint,
                    "has_head": model.has_head,
                    "ready_replicas": model.ready_replicas,
                    "replicas": model.replicas,
                },
            )
            for model in (toy, other)
        }


async def test_without_verifiers_there_are_none(stack: StackMaker) -> None:
    async with http_stack(stack, ["127.0.0.1:1"]) as (s, _):
        assert await over_grpc(s) == []
        assert await over_http(s) == []
