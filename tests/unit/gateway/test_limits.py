"""Time limits: which one it was, and that an answer goes on elsewhere while there is an elsewhere."""

from __future__ import annotations

import asyncio

import grpc
import pytest

from dartspec.gateway.breaker import BreakerState
from dartspec.gateway.limits import Ends, Limits
from dartspec.services.common.errors import Evicted, InternalError, InvalidArgument, ResourceExhausted, Unavailable
from dartspec.v1 import gateway_pb2
from tests.fakes import FakeNgram, FakeVerifier, plain_answer, serving
from tests.unit.gateway.conftest import Stack, StackMaker, collect, until

PROMPT = [1, 2, 3]
MODES = [gateway_pb2.MODE_PLAIN, gateway_pb2.MODE_DART]


async def failure(stack: Stack, **fields: object) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await collect(stack.call(**fields))
    return error.value.code(), str(error.value.details())


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("after", [1, 2, 7])
async def test_a_token_that_does_not_come_is_got_elsewhere(stack: StackMaker, mode: int, after: int) -> None:
    hanging, other = FakeVerifier(), FakeVerifier()
    hanging.hang_after_events = after
    other.reject = ResourceExhausted("full")
    async with stack([hanging, other], [FakeNgram()], between_tokens_seconds=0.3) as s:
        answer = asyncio.create_task(s.generate(mode=mode))
        await until(lambda: hanging.events >= 1)
        other.reject = None
        reply = await answer
        assert reply.ids == plain_answer(hanging.target, PROMPT, 24)
        assert [opened.seed for opened in (*hanging.opens, *other.opens)] == [0] * (1 + len(other.opens))
        resumed = list(other.opens[-1].token_ids)
        assert resumed == [*PROMPT, *reply.ids][: len(resumed)]
        assert len(resumed) > len(PROMPT)
        await until(lambda: not hanging.sessions)  # it is told that the session is over
        # What stalled gets nothing new.
        assert [link.breaker_state() for link in s.gateway.fleet.links].count(BreakerState.OPEN) == 1
        opens = len(hanging.opens)
        for _ in range(4):
            await s.generate(mode=mode)
        assert len(hanging.opens) == opens


async def test_a_first_token_that_does_not_come_is_asked_for_once_elsewhere(stack: StackMaker) -> None:
    first, second, third = verifiers = [FakeVerifier() for _ in range(3)]
    for verifier in verifiers:
        verifier.hang_after_events = 0
    async with stack(verifiers, first_token_seconds=0.2, queue_seconds=5.0) as s:
        code, message = await failure(s)
        assert code == grpc.StatusCode.UNAVAILABLE
        assert "--first-token-seconds" in message
        assert len(first.opens) + len(second.opens) + len(third.opens) == 2
        await until(lambda: s.gateway.generation.open_requests == 0)
    hanging, sound = FakeVerifier(), FakeVerifier()
    hanging.hang_after_events = 0
    async with stack([hanging, sound], first_token_seconds=0.2) as s:
        for _ in range(6):
            assert (await s.generate()).ids == plain_answer(sound.target, PROMPT, 24)
        assert len(hanging.opens) <= 1


async def test_no_token_and_nobody_else_names_the_limit(stack: StackMaker) -> None:
    verifier = FakeVerifier()
    verifier.hang_after_events = 3
    async with stack([verifier], between_tokens_seconds=0.2, resume_seconds=0.2) as s:
        code, message = await failure(s)
    assert code == grpc.StatusCode.UNAVAILABLE
    assert "--between-tokens-seconds" in message
    assert "--resume-seconds" in message


async def test_a_request_waits_for_a_verifier_that_is_full(stack: StackMaker) -> None:
    verifier = FakeVerifier()
    verifier.reject = ResourceExhausted("full", retry_after_ms=50)
    async with stack([verifier], queue_seconds=20.0) as s:
        answer = asyncio.create_task(s.generate())
        await until(lambda: len(verifier.opens) >= 2)
        verifier.reject = None
        assert (await answer).ids == plain_answer(verifier.target, PROMPT, 24)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ResourceExhausted("full", retry_after_ms=50), grpc.StatusCode.RESOURCE_EXHAUSTED),
        (Unavailable("draining", retry_after_ms=50), grpc.StatusCode.UNAVAILABLE),
    ],
)
async def test_a_queue_that_does_not_move_ends_with_its_limit(
    stack: StackMaker, error: Exception, code: grpc.StatusCode
) -> None:
    verifier = FakeVerifier()
    verifier.reject = error  # type: ignore[assignment]
    async with stack([verifier], queue_seconds=0.3) as s:
        said, message = await failure(s)
        assert said == code
        assert "--queue-seconds" in message
        assert error.message in message  # type: ignore[attr-defined]
        # Neither says that the verifier is broken.
        assert [link.breaker.failures for link in s.gateway.fleet.links] == [0]


@pytest.mark.parametrize("hangs", [False, True])
async def test_the_total_limit_ends_an_answer(stack: StackMaker, hangs: bool) -> None:
    verifier = FakeVerifier()
    verifier.step_seconds = 0.02
    verifier.hang_after_events = 3 if hangs else None
    async with stack([verifier], total_seconds=0.4, between_tokens_seconds=0.3) as s:
        code, message = await failure(s, sampling={"max_tokens": 4000})
        assert code == grpc.StatusCode.DEADLINE_EXCEEDED
        assert "--total-seconds" in message
        assert 0 < verifier.opens[0].time_left_ms <= 400
        await until(lambda: s.gateway.generation.open_requests == 0)
        assert [link.sessions for link in s.gateway.fleet.links] == [0]


async def test_broken_verifiers_are_left_alone_and_tried_again(stack: StackMaker) -> None:
    broken, sound = FakeVerifier(), FakeVerifier()
    broken.reject = InternalError("CUDA error")
    async with stack([broken, sound], routing="round_robin") as s:
        for _ in range(20):
            await s.generate(sampling={"max_tokens": 3})
        assert len(broken.opens) == 3
        listed = await s.admin.ListReplicas(gateway_pb2.ListReplicasRequest())
        assert {r.state for r in listed.replicas} == {
            gateway_pb2.REPLICA_STATE_RESTING,
            gateway_pb2.REPLICA_STATE_READY,
        }
        broken.reject = None
        async with asyncio.timeout(20):
            while len(broken.opens) < 8:
                await s.generate(sampling={"max_tokens": 3})
        assert [link.breaker_state() for link in s.gateway.fleet.links] == [BreakerState.CLOSED] * 2


@pytest.mark.parametrize(
    "error",
    [ResourceExhausted("full", retry_after_ms=10), InvalidArgument("open", "wrong"), Evicted("idle")],
)
async def test_what_is_not_the_verifiers_fault_does_not_count(stack: StackMaker, error: Exception) -> None:
    verifier = FakeVerifier()
    verifier.reject = error  # type: ignore[assignment]
    async with stack([verifier]) as s:
        for _ in range(6):
            await failure(s)
        assert [link.breaker.failures for link in s.gateway.fleet.links] == [0]
        verifier.reject = None
        await s.generate()


async def test_cancellations_and_deadlines_of_clients_do_not_count(stack: StackMaker) -> None:
    verifier = FakeVerifier()
    verifier.step_seconds = 0.05
    async with stack([verifier]) as s:
        for _ in range(4):
            with pytest.raises(grpc.aio.AioRpcError):
                await collect(s.call(timeout=0.02))
            call = s.call()
            await call.read()
            call.cancel()
        await until(lambda: not verifier.sessions and s.gateway.generation.open_requests == 0)
        assert [link.breaker.failures for link in s.gateway.fleet.links] == [0]


async def test_a_stream_that_is_lost_in_work_is_one_failure(stack: StackMaker) -> None:
    dying, other = FakeVerifier(), FakeVerifier()
    dying.step_seconds = 0.02
    gone = serving(dying)
    address = await gone.__aenter__()
    async with stack([address]) as s:
        calls = [asyncio.create_task(s.generate(sampling={"max_tokens": 40})) for _ in range(5)]
        await until(lambda: len(dying.sessions) == 5 and dying.events >= 5)
        await gone.__aexit__(None, None, None)
        async with serving(other, address):
            for call in calls:
                assert (await call).ids == plain_answer(dying.target, PROMPT, 40)
        assert len(other.opens) == 5


def test_which_limit_is_said() -> None:
    limits = Limits(queue=1, first_token=10, between_tokens=5, total=None, stall=60, resume=1)
    assert limits.exceeded(begun=False, waited=9) == limits.exceeded(begun=True, waited=4) == ""
    assert "--first-token-seconds" in limits.exceeded(begun=False, waited=11)
    assert "--between-tokens-seconds" in limits.exceeded(begun=True, waited=6)


def test_the_first_end_is_said() -> None:
    assert Ends(100.0, None, None).time_left(1e9) is None
    assert Ends(100.0, 5.0, 8.0).time_left(101.0) == 4.0
    assert Ends(100.0, None, 8.0).time_left(101.0) == 7.0
    assert "deadline" in Ends(100.0, 5.0, 8.0).over().message
    assert "--total-seconds" in Ends(100.0, 9.0, 8.0).over().message
