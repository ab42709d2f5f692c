"""The administrative service, and routes that a request asks for."""

from __future__ import annotations

import asyncio

import grpc
import pytest

from dartspec.gateway.router import POLICIES
from dartspec.services.common.channel import error_from_rpc
from dartspec.services.common.errors import DartspecError, ResourceExhausted
from dartspec.v1 import gateway_pb2
from tests.fakes import FakeVerifier, plain_answer, serving
from tests.unit.gateway.conftest import Stack, StackMaker, until

READY, DOWN = gateway_pb2.REPLICA_STATE_READY, gateway_pb2.REPLICA_STATE_DOWN
DRAINING = gateway_pb2.REPLICA_STATE_DRAINING


async def listed(stack: Stack) -> dict[str, gateway_pb2.Replica]:
    answer = await stack.admin.ListReplicas(gateway_pb2.ListReplicasRequest())
    assert [r.address for r in answer.replicas] == sorted(r.address for r in answer.replicas)
    return {replica.address: replica for replica in answer.replicas}


async def error(call: grpc.aio.UnaryUnaryCall) -> DartspecError:
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await call
    return error_from_rpc(failure.value, "gateway")


async def test_replicas_are_listed_dead_ones_too(stack: StackMaker) -> None:
    verifier = FakeVerifier()
    verifier.step_seconds = 0.02
    async with serving(verifier) as address, stack([address, "127.0.0.1:1"]) as s:
        record = gateway_pb2.ServiceRecord(
            kind=gateway_pb2.SERVICE_KIND_VERIFIER, address="127.0.0.1:1", node="n7", model="other"
        )
        await s.registry.Announce(gateway_pb2.AnnounceRequest(record=record))
        calls = [
            asyncio.create_task(s.generate(mode=mode, sampling={"max_tokens": 200}))
            for mode in (gateway_pb2.MODE_PLAIN, gateway_pb2.MODE_DART, gateway_pb2.MODE_DART)
        ]
        await until(lambda: len(verifier.sessions) == 3 and verifier.events > 6)
        replicas = await listed(s)
        alive, dead = replicas[address], replicas["127.0.0.1:1"]
        assert (alive.state, alive.model, alive.model_fingerprint) == (READY, "toy", "weights")
        assert alive.tokenizer_fingerprint == verifier.hello.tokenizer_fingerprint
        assert alive.open == alive.opened == gateway_pb2.ModeCounts(plain=1, dart=2)
        assert (alive.load.sessions, alive.max_sessions) == (3, 1024)
        assert (dead.state, dead.node, dead.model) == (DOWN, "n7", "other")
        status = await s.admin.GetStatus(gateway_pb2.GetStatusRequest())
        assert (status.open_requests, list(status.models), status.routing) == (3, ["toy"], "dart")
        assert (status.replicas, status.ready_replicas, status.ngram_services) == (2, 1, 0)
        assert status.registry_state == gateway_pb2.REGISTRY_STATE_NONE
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        await until(lambda: not verifier.sessions)
        after = (await listed(s))[address]
        assert after.open == gateway_pb2.ModeCounts()
        assert after.opened == gateway_pb2.ModeCounts(plain=1, dart=2)


async def test_drain_and_undrain(stack: StackMaker) -> None:
    first, second = FakeVerifier(), FakeVerifier()
    first.step_seconds = 0.01
    async with serving(first) as address, stack([address, second], routing="round_robin") as s:
        metadata = (("dartspec-replica", address),)
        running = asyncio.create_task(s.generate(metadata=metadata, sampling={"max_tokens": 60}))
        await until(lambda: first.events > 2)
        await s.admin.DrainReplica(gateway_pb2.DrainReplicaRequest(address=address))
        assert (await listed(s))[address].state == DRAINING
        for _ in range(4):
            await s.generate()
        assert (len(first.opens), len(second.opens)) == (1, 4)
        assert (await running).ids == plain_answer(first.target, [1, 2, 3], 60)  # to its end, there
        await s.admin.UndrainReplica(gateway_pb2.UndrainReplicaRequest(address=address))
        for _ in range(4):
            await s.generate(sampling={"max_tokens": 2})
        assert (len(first.opens), len(second.opens)) == (3, 6)


async def test_an_unknown_replica_is_not_found(stack: StackMaker) -> None:
    async with stack([FakeVerifier()]) as s:
        for call in (
            s.admin.DrainReplica(gateway_pb2.DrainReplicaRequest(address="x:1")),
            s.admin.UndrainReplica(gateway_pb2.UndrainReplicaRequest(address="x:1")),
        ):
            found = await error(call)
            assert (found.code, found.field) == (grpc.StatusCode.NOT_FOUND, "address")


@pytest.mark.parametrize("policy", POLICIES)
async def test_a_request_may_name_the_policy(stack: StackMaker, policy: str) -> None:
    verifiers = [FakeVerifier() for _ in range(3)]
    async with stack(verifiers) as s:
        for _ in range(6):
            reply = await s.generate(metadata=(("dartspec-routing", policy),), sampling={"max_tokens": 2})
            assert reply.ids == plain_answer(verifiers[0].target, [1, 2, 3], 2)
        if policy == "round_robin":
            assert [len(verifier.opens) for verifier in verifiers] == [2, 2, 2]


async def test_a_request_may_name_the_replica(stack: StackMaker) -> None:
    wanted, others = FakeVerifier(), [FakeVerifier() for _ in range(3)]
    async with serving(wanted) as address, stack([address, *others]) as s:
        metadata = (("dartspec-replica", address),)
        for _ in range(5):
            await s.generate(metadata=metadata, sampling={"max_tokens": 2})
        assert len(wanted.opens) == 5
        wanted.reject = ResourceExhausted("full", retry_after_ms=70)
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await s.generate(metadata=metadata)
        assert failure.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert sum(len(other.opens) for other in others) == 0


@pytest.mark.parametrize(
    ("key", "value", "code"),
    [
        ("dartspec-routing", "fastest", grpc.StatusCode.INVALID_ARGUMENT),
        ("dartspec-replica", "nobody:1", grpc.StatusCode.NOT_FOUND),
        ("dartspec-replica", "x" * 300, grpc.StatusCode.INVALID_ARGUMENT),
    ],
)
async def test_a_wrong_route_names_its_key(stack: StackMaker, key: str, value: str, code: grpc.StatusCode) -> None:
    async with stack([FakeVerifier()]) as s:
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await s.generate(metadata=((key, value),))
        found = error_from_rpc(failure.value, "gateway")
        assert (found.code, found.field) == (code, key)
        await s.generate()


async def test_a_replica_of_another_model_is_refused(stack: StackMaker) -> None:
    toy, other = FakeVerifier(), FakeVerifier(model="other")
    async with serving(other) as address, stack([toy, address]) as s:
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await s.generate(model="toy", metadata=(("dartspec-replica", address),))
        assert failure.value.code() == grpc.StatusCode.FAILED_PRECONDITION


async def test_a_shared_prefix_goes_where_it_was_read(stack: StackMaker) -> None:
    verifiers = [FakeVerifier() for _ in range(4)]
    shared = [index % 250 for index in range(1000)]
    async with stack(verifiers) as s:
        for request in range(12):
            prompt = gateway_pb2.TokenIds(ids=[*shared, request])
            await s.generate(token_ids=prompt, sampling={"max_tokens": 2})
        assert sorted(len(verifier.opens) for verifier in verifiers) == [0, 0, 0, 12]
        slow = next(verifier for verifier in verifiers if verifier.opens)
        slow.step_seconds = 0.02
        calls = [
            asyncio.create_task(s.generate(token_ids=gateway_pb2.TokenIds(ids=shared), sampling={"max_tokens": 60}))
            for _ in range(16)
        ]
        await asyncio.gather(*calls)
        assert len(slow.opens) < 12 + 16  # and yields to load
