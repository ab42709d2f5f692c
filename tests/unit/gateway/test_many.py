"""Many requests at once, and clients that do not read."""

from __future__ import annotations

import asyncio
import random

import grpc

from dartspec.gateway.ahead import Ahead
from dartspec.gateway.convert import request_from_proto
from dartspec.gateway.service import READ_AHEAD
from dartspec.gateway.types import Chunk, Finish
from dartspec.services.common.errors import Evicted
from dartspec.v1 import common_pb2, gateway_pb2, gateway_pb2_grpc
from tests.fakes import FakeNgram, FakeVerifier, plain_answer, scripted_target
from tests.unit.gateway.conftest import Stack, StackMaker, collect, until


async def test_many_requests_of_all_kinds_each_get_their_own_tokens(stack: StackMaker) -> None:
    verifiers = [FakeVerifier(), FakeVerifier(), FakeVerifier()]
    rng = random.Random(3)

    async def one(index: int) -> None:
        prompt = [rng.randrange(200) for _ in range(rng.randrange(1, 9))]
        count, seed, mode = rng.randrange(1, 50), rng.randrange(2**64), rng.choice([1, 2, 3])
        expected = plain_answer(verifiers[0].target, prompt, count, seed=seed)
        reply = await s.generate(
            token_ids=gateway_pb2.TokenIds(ids=prompt),
            seed=seed,
            mode=mode,
            sampling={"max_tokens": count, "temperature": 1.0},
        )
        assert reply.ids == expected
        assert reply.text == verifiers[0].tokenizer.decode(expected)

    async with stack(verifiers, [FakeNgram()]) as s:
        await asyncio.gather(*[one(index) for index in range(120)])
        assert s.gateway.generation.open_requests == 0
    for verifier in verifiers:
        assert verifier.sessions == {}
        assert verifier.streams == 1
        assert 20 <= len(verifier.opens) <= 60  # 40 each on average


async def test_requests_keep_their_tokens_through_chaos(stack: StackMaker) -> None:
    verifiers = [FakeVerifier(), FakeVerifier(), FakeVerifier()]
    verifiers[0].die_after_events = 120
    verifiers[1].fail_at = {index: Evicted("idle") for index in range(3, 30, 4)}
    ngram = FakeNgram()
    expected = [plain_answer(verifiers[0].target, [1, 2, 3], 40, seed=seed) for seed in range(60)]

    async def one(seed: int) -> list[int]:
        call = s.call(seed=seed, mode=1 + seed % 3, sampling={"max_tokens": 40})
        if seed % 5:
            return (await collect(call)).ids
        ids: list[int] = []  # goes away in the middle
        for _ in range(seed % 12):
            ids += (await call.read()).chunk.token_ids
        call.cancel()
        return ids

    async with stack(verifiers, [ngram]) as s:
        replies = await asyncio.gather(*[one(seed) for seed in range(60)])
        await until(lambda: s.gateway.generation.open_requests == 0)
        await until(lambda: all(not verifier.sessions for verifier in verifiers))
    for seed, ids in enumerate(replies):
        assert ids == (expected[seed] if seed % 5 else expected[seed][: len(ids)])
    assert verifiers[0].streams > 1
    assert len(verifiers[1].fail_at) < 7  # some were evicted


async def test_a_prompt_of_more_than_4_mib_passes(stack: StackMaker) -> None:
    prompt = [200 + index % 50 for index in range(2_200_000)]  # two bytes each on the wire
    verifier = FakeVerifier(scripted_target([70, 71]), context_length=3_000_000)
    async with stack([verifier]) as s:
        reply = await s.generate(token_ids=gateway_pb2.TokenIds(ids=prompt), sampling={"max_tokens": 2})
    assert reply.ids == [70, 71]
    assert verifier.opens[0].ByteSize() > 4 * 2**20


async def settled(verifier: FakeVerifier) -> int:
    """Tokens that the verifier has made when it makes no more."""
    made = -1
    while made != verifier.tokens_made:
        made = verifier.tokens_made
        await asyncio.sleep(0.05)
    return made


async def test_a_client_that_does_not_read_stops_its_own_work(stack: StackMaker) -> None:
    verifier = FakeVerifier(context_length=100_000)
    async with stack([verifier], [FakeNgram()]) as s:
        for mode, most in ((gateway_pb2.MODE_PLAIN, 16 + 2 + 48), (gateway_pb2.MODE_DART, (16 + 3) * 5)):
            verifier.tokens_made = 0
            message = gateway_pb2.GenerateRequest(
                token_ids=gateway_pb2.TokenIds(ids=[1, 2, 3]),
                sampling=common_pb2.Sampling(temperature=0.0, max_tokens=50_000),
                seed=0,
                mode=mode,
            )
            answer = s.gateway.generation.generate(request_from_proto(message), None)
            await anext(answer)
            await anext(answer)
            assert await settled(verifier) <= most
            # One chunk at a time, the verifier idle in between: what is ahead of the client must not grow.
            for _ in range(12):
                await anext(answer)
                await settled(verifier)
            assert verifier.tokens_made <= most + 12 * (1 if mode == gateway_pb2.MODE_PLAIN else 5)
            await answer.aclose()
            assert s.gateway.generation.open_requests == 0


async def test_a_client_whose_connection_is_full_stops_its_own_work(stack: StackMaker) -> None:
    verifier = FakeVerifier(context_length=100_000)
    # A client library may take in megabytes that its program has not asked for; this one takes 4 KiB.
    options = [("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 4096)]
    async with stack([verifier]) as s, grpc.aio.insecure_channel(s.gateway.addresses[0], options=options) as channel:
        client = Stack(s.gateway, gateway_pb2_grpc.GatewayServiceStub(channel), s.registry)
        call = client.call(timeout=None, mode=gateway_pb2.MODE_PLAIN, sampling={"max_tokens": 50_000})
        await call.read()
        assert await settled(verifier) < 1000
        call.cancel()
        await until(lambda: not verifier.sessions and s.gateway.generation.open_requests == 0)


async def test_a_stop_string_frees_the_verifier_before_the_client_reads(stack: StackMaker) -> None:
    letters = "cdfgijkmnopqrstuvxyz"
    verifier = FakeVerifier(context_length=100_000)
    verifier.target = scripted_target(verifier.tokenizer.encode(letters).ids)
    async with stack([verifier]) as s:
        message = gateway_pb2.GenerateRequest(
            token_ids=gateway_pb2.TokenIds(ids=[1, 2, 3]),
            sampling=common_pb2.Sampling(temperature=0.0, max_tokens=50_000),
            seed=0,
            mode=gateway_pb2.MODE_PLAIN,
            stop=[letters[READ_AHEAD + 1]],  # one chunk is read, READ_AHEAD wait, this one is in hand
        )
        answer = s.gateway.generation.generate(request_from_proto(message), None)
        await anext(answer)
        await anext(answer)
        await until(lambda: verifier.commands["close"] == 1 and not verifier.sessions)
        messages = [item async for item in answer]
        assert [type(message) for message in messages] == [Chunk] * (READ_AHEAD + 1) + [Finish]


async def test_a_burst_spreads_over_verifiers_that_have_not_reported(stack: StackMaker) -> None:
    verifiers = [FakeVerifier() for _ in range(4)]
    for verifier in verifiers:
        verifier.step_seconds = 0.3
    async with stack(verifiers) as s:
        await asyncio.gather(*[s.generate(sampling={"max_tokens": 1}) for _ in range(16)])
    assert [len(verifier.opens) for verifier in verifiers] == [4, 4, 4, 4]


async def test_ahead_stops_at_its_bound_and_closes_its_source() -> None:
    given: list[int] = []
    closed = asyncio.Event()

    async def source():  # type: ignore[no-untyped-def]
        try:
            for item in range(100):
                given.append(item)
                yield item
        finally:
            closed.set()

    reader = Ahead(source(), most=3).items()
    assert await anext(reader) == 0
    for _ in range(20):
        await asyncio.sleep(0)
    assert given == [0, 1, 2, 3, 4]  # one read, three waiting, one in hand
    await reader.aclose()
    assert closed.is_set()


async def test_ahead_gives_an_error_after_the_items_before_it() -> None:
    async def source():  # type: ignore[no-untyped-def]
        yield 1
        raise ValueError("after one")

    got = []
    try:
        async for item in Ahead(source(), most=3).items():
            got.append(item)
    except ValueError as error:
        got.append(str(error))
    assert got == [1, "after one"]
