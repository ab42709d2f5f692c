"""Verifiers that die, hang, refuse and evict; clients that go away; nothing lost, repeated or leaked."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import grpc
import pytest

from dartspec.services.common.channel import error_from_rpc
from dartspec.services.common.errors import Evicted, InternalError, ResourceExhausted
from dartspec.v1 import gateway_pb2, verifier_pb2
from tests.fakes import FakeNgram, FakeVerifier, logprob, plain_answer, serving, top_tokens
from tests.toy import FakeSession
from tests.unit.gateway.conftest import StackMaker, collect, until

PROMPT = [1, 2, 3]
MODES = [gateway_pb2.MODE_PLAIN, gateway_pb2.MODE_DART]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("after", [0, 1, 2, 5])
async def test_a_verifier_that_dies_is_replaced_without_a_gap(stack: StackMaker, mode: int, after: int) -> None:
    verifiers = [FakeVerifier(), FakeVerifier()]
    expected = plain_answer(verifiers[0].target, PROMPT, 16)
    for verifier in verifiers:
        verifier.die_after_events = after
    async with stack(verifiers, [FakeNgram()]) as s:
        if after == 0:
            verifiers[1].die_after_events = None
        reply = await s.generate(mode=mode, sampling={"max_tokens": 16, "top_logprobs": 2})
    assert reply.ids == expected
    assert reply.text == verifiers[0].tokenizer.decode(expected)
    tokens = [*PROMPT, *expected]
    assert reply.logprobs == [logprob(tokens, position) for position in range(3, 19)]
    assert reply.top_logprobs == [top_tokens(tokens, position, 2) for position in range(3, 19)]
    opens = [opened for verifier in verifiers for opened in verifier.opens]
    assert len(opens) >= 2 or after == 0
    assert {opened.seed for opened in opens} == {0}
    assert {opened.prompt_len for opened in opens} == {3}
    for opened in opens:
        tokens = list(opened.token_ids)
        assert tokens == [*PROMPT, *expected][: len(tokens)]


async def test_a_process_that_goes_away_is_replaced(stack: StackMaker) -> None:
    lasting, dying = FakeVerifier(), FakeVerifier()
    dying.step_seconds = 0.01
    lasting.reject = ResourceExhausted("full", retry_after_ms=50)
    expected = plain_answer(lasting.target, PROMPT, 60)
    async with serving(lasting) as kept:
        gone = serving(dying)
        address = await gone.__aenter__()
        async with stack([kept, address]) as s:
            answer = asyncio.create_task(s.generate(sampling={"max_tokens": 60}))
            await until(lambda: dying.events > 5)
            lasting.reject = None
            await gone.__aexit__(None, None, None)
            reply = await answer
    assert reply.ids == expected
    assert lasting.opens[-1].token_ids != PROMPT
    assert lasting.sessions == dying.sessions == {}


async def test_a_hanging_verifier_is_left(stack: StackMaker) -> None:
    hanging, other = FakeVerifier(), FakeVerifier()
    hanging.hang_after_events = 3
    other.reject = ResourceExhausted("full")
    async with stack([hanging, other], stall_seconds=0.4) as s:
        answer = asyncio.create_task(s.generate())
        await until(lambda: hanging.events == 3)
        other.reject = None
        reply = await answer
    assert reply.ids == plain_answer(hanging.target, PROMPT, 24)


async def test_a_full_verifier_is_passed_over_before_the_first_token(stack: StackMaker) -> None:
    full, free = FakeVerifier(), FakeVerifier()
    full.reject = ResourceExhausted("full", retry_after_ms=700)
    async with stack([full, free]) as s:
        for _ in range(8):
            await s.generate()
        assert len(free.opens) == 8
        free.reject = ResourceExhausted("full too", retry_after_ms=700)
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await s.generate()
    error = error_from_rpc(failure.value, "gateway")
    assert (error.code, error.retry_after_ms) == (grpc.StatusCode.RESOURCE_EXHAUSTED, 700)


@pytest.mark.parametrize("mode", MODES)
async def test_an_evicted_session_is_resumed(stack: StackMaker, mode: int) -> None:
    verifier = FakeVerifier()
    verifier.fail_at = {5: Evicted("idle"), 6: Evicted("idle"), 7: Evicted("idle")}
    async with stack([verifier], [FakeNgram()]) as s:
        reply = await s.generate(mode=mode, sampling={"max_tokens": 40})
    assert reply.ids == plain_answer(verifier.target, PROMPT, 40)
    assert verifier.commands["open"] >= 2


async def test_an_internal_error_is_tried_once_elsewhere(stack: StackMaker) -> None:
    broken, sound = FakeVerifier(), FakeVerifier()
    broken.reject = InternalError("CUDA error")
    async with stack([broken, sound]) as s:
        for _ in range(6):
            await s.generate()
        assert len(sound.opens) == 6
    verifier = FakeVerifier()
    verifier.fail_at = {4: InternalError("CUDA error")}
    async with stack([verifier]) as s:
        call = s.call()
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await collect(call)
        assert failure.value.code() == grpc.StatusCode.INTERNAL
        await s.generate()


async def test_an_answer_waits_for_its_only_verifier_to_come_back(stack: StackMaker) -> None:
    verifier = FakeVerifier()
    verifier.die_after_events = 5
    async with stack([verifier]) as s:
        reply = await s.generate(mode=gateway_pb2.MODE_PLAIN, sampling={"max_tokens": 24})
    assert reply.ids == plain_answer(verifier.target, PROMPT, 24)
    assert verifier.streams >= 5


async def test_an_answer_that_cannot_go_on_ends_with_a_status(stack: StackMaker) -> None:
    verifier = FakeVerifier()
    verifier.fail_at = {5: Evicted("idle")}
    async with stack([verifier], resume_seconds=0.3) as s:
        call = s.call(mode=gateway_pb2.MODE_PLAIN)
        assert (await call.read()).WhichOneof("kind") == "start"
        verifier.reject = ResourceExhausted("full", retry_after_ms=120)
        verifier.hang_after_events = None
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await collect(call)
        assert failure.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert s.gateway.generation.open_requests == 0


async def test_other_weights_under_the_same_name_do_not_continue_an_answer(stack: StackMaker) -> None:
    dying, other = FakeVerifier(weights="a"), FakeVerifier(weights="b")
    dying.step_seconds = other.step_seconds = 0.005
    async with stack([dying, other], resume_seconds=0.3) as s:
        call = s.call(sampling={"max_tokens": 200})
        for _ in range(5):
            await call.read()
        begun, spare = (dying, other) if dying.opens else (other, dying)
        begun.fail_at = {20: Evicted("idle")}
        begun.reject = ResourceExhausted("full")
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await collect(call)
        assert failure.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert spare.opens == []


@pytest.mark.parametrize("mode", MODES)
async def test_a_client_that_goes_away_frees_its_session(stack: StackMaker, mode: int) -> None:
    verifier = FakeVerifier()
    verifier.step_seconds = 0.01
    async with stack([verifier], [FakeNgram()]) as s:
        call = s.call(mode=mode, sampling={"max_tokens": 4000})
        for _ in range(5):
            await call.read()
        assert len(verifier.sessions) == 1
        call.cancel()
        await until(lambda: verifier.commands["close"] == 1)
        made = verifier.tokens_made
        await until(lambda: not verifier.sessions)
        assert verifier.tokens_made <= made + 5  # at most the round that was under way
        await until(lambda: s.gateway.generation.open_requests == 0)


async def test_a_client_that_goes_away_while_queued_frees_its_session(stack: StackMaker) -> None:
    verifier = FakeVerifier()
    verifier.step_seconds = 0.2
    async with stack([verifier]) as s:
        call = s.call()
        assert (await call.read()).WhichOneof("kind") == "start"
        await until(lambda: len(verifier.sessions) == 1)
        call.cancel()
        await until(lambda: not verifier.sessions and s.gateway.generation.open_requests == 0)
        assert verifier.commands["decode"] == 0


async def test_the_deadline_is_passed_on_and_kept(stack: StackMaker) -> None:
    verifier = FakeVerifier()
    verifier.step_seconds = 0.02
    async with stack([verifier], total_seconds=0.0) as s:
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await collect(s.call(timeout=0.5, sampling={"max_tokens": 4000}))
        assert failure.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
        assert 0 < verifier.opens[0].time_left_ms <= 500
        await until(lambda: not verifier.sessions and s.gateway.generation.open_requests == 0)
        await collect(s.call(timeout=None, sampling={"max_tokens": 2}))
        assert verifier.opens[1].time_left_ms == 0


async def test_one_dead_verifier_breaks_nothing_else_and_comes_back(stack: StackMaker) -> None:
    alive, late = FakeVerifier(), FakeVerifier()
    async with serving(late) as address:
        pass
    async with stack([alive, address]) as s:
        await s.generate()
        assert late.opens == []
        async with serving(late, address):
            await until(lambda: late.streams == 1)
            alive.reject = ResourceExhausted("full")
            await s.generate()
            assert len(late.opens) == 1


def _shifted(event: verifier_pb2.RoundEvent) -> None:
    event.n += 1


def _without_top_logprobs(event: verifier_pb2.RoundEvent) -> None:
    event.ClearField("top_logprobs")


def _half_a_position(event: verifier_pb2.RoundEvent) -> None:
    del event.top_logprobs.token_ids[-1], event.top_logprobs.logprobs[-1]


def _without_width(event: verifier_pb2.RoundEvent) -> None:
    event.top_logprobs.width = 0


def _one_value_less(event: verifier_pb2.RoundEvent) -> None:
    del event.top_logprobs.logprobs[-1]


@pytest.mark.parametrize("spoil", [_shifted, _without_top_logprobs, _half_a_position, _without_width, _one_value_less])
async def test_a_verifier_that_breaks_the_protocol_fails_only_its_session(
    stack: StackMaker, spoil: Callable[[verifier_pb2.RoundEvent], None]
) -> None:
    verifier = FakeVerifier()
    honest = verifier._pass

    def spoiled(session: FakeSession) -> verifier_pb2.RoundEvent:
        event = honest(session)
        spoil(event)
        return event

    verifier._pass = spoiled  # type: ignore[method-assign]
    async with stack([verifier]) as s:
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await s.generate(sampling={"top_logprobs": 2})
        assert failure.value.code() == grpc.StatusCode.INTERNAL
        assert "broke the protocol" in str(failure.value.details())
        verifier._pass = honest  # type: ignore[method-assign]
        await s.generate()
        await until(lambda: not verifier.sessions)
    assert verifier.streams == 1
