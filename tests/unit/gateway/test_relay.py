"""Offers that are answered on the way: the same searches and trees as from here, as many as allowed, no error lost."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from dartspec.gateway.relay import Relay, RelayedCall
from dartspec.gateway.rounds_call import Answered, Heard
from dartspec.gateway.search import SearchRoute, TreeSearch
from dartspec.services.common.channel import error_from_rpc
from dartspec.services.common.errors import FailedPrecondition
from dartspec.v1 import common_pb2, gateway_pb2, ngram_pb2, verifier_pb2
from tests.fakes import FakeNgram, FakeVerifier, plain_answer, serving
from tests.unit.gateway.conftest import StackMaker, until

PROMPT = [5, 6, 7, 8, 9, 10]
TIMEOUT_MS = 5_000
MODEL: Any = object()


class Routes:
    """In place of a TreeSearch: always the same route; remembers what failed."""

    def __init__(self, address: str, timeout_ms: int = TIMEOUT_MS) -> None:
        params = ngram_pb2.SearchParams(node_budget=40, beam_width=20)
        request = ngram_pb2.SearchRequest(tokenizer_fingerprint="t", params=params)
        self._route = SearchRoute(address, request.SerializeToString(), timeout_ms)
        self.failed: list[tuple[str, bool]] = []

    def route(self, model: Any) -> SearchRoute:
        return self._route

    def route_failed(self, address: str, model: Any, reason: str, *, late: bool) -> None:
        assert (address, model) == (self._route.address, MODEL)
        self.failed.append((reason, late))


@asynccontextmanager
async def greeted(verifier: FakeVerifier, routes: Any) -> AsyncIterator[RelayedCall]:
    """A call to the verifier, guided, after the greeting."""
    async with serving(verifier) as address:
        relay = Relay(routes)
        try:
            call = relay.open(address)
            await call.write(verifier_pb2.RoundsRequest(hello=verifier.hello))
            greeting = await call.read()
            assert isinstance(greeting, Heard)
            assert greeting.response.hello == verifier.hello
            call.guide(MODEL)
            yield call
        finally:
            relay.close()


def opening(session: int) -> verifier_pb2.RoundsRequest:
    command = verifier_pb2.OpenCommand(
        token_ids=PROMPT,
        prompt_len=len(PROMPT),
        sampling=common_pb2.Sampling(temperature=0.0, max_tokens=200),
        draft_after=True,
        always_draft=True,
    )
    return verifier_pb2.RoundsRequest(commands=[verifier_pb2.Command(session=session, open=command)])


async def heard(call: RelayedCall) -> tuple[verifier_pb2.RoundEvent, bool]:
    """The next message's only round, and whether its offer is being answered."""
    came = await call.read()
    assert isinstance(came, Heard)
    (event,) = came.response.events
    return event.round, event.session in came.answering


@pytest.mark.parametrize("search_nodes", [0, 6])
async def test_searches_and_trees_are_those_of_the_gateway_itself(stack: StackMaker, search_nodes: int) -> None:
    seen = []
    for relay in ("auto", "off"):
        verifier, ngram = FakeVerifier(), FakeNgram()
        verifier.search_nodes = search_nodes
        async with stack([verifier], [ngram], relay=relay, search="reference") as s:
            reply = await s.generate(mode=gateway_pb2.MODE_DART, sampling={"max_tokens": 60})
        ledger = reply.finish.ledger
        facts = (ledger.dart_rounds, ledger.accepted, ledger.search_ms, ledger.chain_fallbacks, ledger.plain_steps)
        seen.append((reply.ids, ngram.requests, verifier.trees, verifier.commands, facts))
    assert seen[0] == seen[1]
    assert len(seen[0][2]) > 5
    assert seen[0][1][0].params.node_budget == (search_nodes or 59)


async def test_every_offer_of_a_reader_that_keeps_up_is_answered(
    stack: StackMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def begin(*_: Any, **__: Any) -> None:
        raise AssertionError("a search went through the gateway's own client")

    monkeypatch.setattr(TreeSearch, "begin", begin)
    verifier, ngram = FakeVerifier(), FakeNgram()
    verifier.step_seconds = 0.02
    async with stack([verifier], [ngram]) as s:
        replies = await asyncio.gather(*(s.generate(mode=gateway_pb2.MODE_DART, seed=seed) for seed in range(4)))
    for seed, reply in enumerate(replies):
        assert reply.ids == plain_answer(verifier.target, [1, 2, 3], 24, seed=seed)
    assert max(ngram.batches) > 1  # one search for sessions whose rounds came together
    assert sum(reply.finish.ledger.chain_fallbacks for reply in replies) == 0


async def test_as_many_offers_are_answered_as_were_allowed() -> None:
    verifier, ngram = FakeVerifier(), FakeNgram()
    async with serving(ngram) as address, greeted(verifier, Routes(address)) as call:
        call.follow(1, PROMPT)
        call.allow(1, 2)
        await call.write(opening(1))
        for _ in range(2):
            _, answering = await heard(call)
            assert answering
            assert await call.read() == Answered((1,), 0.25)
        round, answering = await heard(call)
        assert round.HasField("proposals")
        assert not answering
        assert (verifier.commands["verify"], len(ngram.batches)) == (2, 2)


async def test_a_context_is_the_last_tokens_with_those_of_the_round() -> None:
    verifier, ngram = FakeVerifier(), FakeNgram()
    tokens = list(PROMPT)
    async with serving(ngram) as address, greeted(verifier, Routes(address)) as call:
        call.follow(1, tokens)
        await call.write(opening(1))
        round, answering = await heard(call)  # nothing was allowed
        assert not answering
        tokens += round.token_ids
        call.allow(1, 1)
        chain = verifier_pb2.VerifyCommand(n=round.n, chain=verifier_pb2.ChainCandidates(), draft_after=True)
        await call.write(verifier_pb2.RoundsRequest(commands=[verifier_pb2.Command(session=1, verify=chain)]))
        round, answering = await heard(call)
        assert answering
        tokens += round.token_ids
        assert await call.read() == Answered((1,), 0.25)
    (query,) = ngram.requests[0].queries
    assert list(query.context) == tokens[-4:]
    assert query.proposals == round.proposals


async def test_nothing_is_sent_for_a_session_that_ended_meanwhile() -> None:
    gate = asyncio.Event()

    class Gated(FakeNgram):
        async def Search(self, request: Any, context: Any) -> ngram_pb2.SearchResponse:  # noqa: N802
            response = await super().Search(request, context)
            await gate.wait()
            return response

    verifier, ngram = FakeVerifier(), Gated()
    async with serving(ngram) as address, greeted(verifier, Routes(address)) as call:
        call.follow(1, PROMPT)
        call.allow(1, 1)
        await call.write(opening(1))
        await until(lambda: len(ngram.batches) == 1)
        call.forget(1)
        gate.set()
        assert (await heard(call))[1]
        assert await call.read() == Answered((1,), 0.25)
        await call.write(opening(2))  # behind anything that was sent for the first
        await heard(call)
        assert verifier.commands["verify"] == 0


async def test_a_service_that_hangs_is_asked_once_and_another_does(stack: StackMaker) -> None:
    verifier, hanging, ngram = FakeVerifier(), FakeNgram(), FakeNgram()
    hanging.hang = True
    async with stack([verifier], [hanging, ngram], search_timeout_ms=200) as s:
        ledger = (await s.generate(mode=gateway_pb2.MODE_DART)).finish.ledger
    assert len(hanging.batches) == 1
    assert len(ngram.batches) == ledger.dart_rounds > 1
    assert ledger.chain_fallbacks == 0


async def test_without_the_extension_rounds_go_through_python(
    stack: StackMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ngram_index", None)
    monkeypatch.delitem(sys.modules, "dartspec.gateway.relay")
    verifier, ngram = FakeVerifier(), FakeNgram()
    async with stack([verifier], [ngram]) as s:
        reply = await s.generate(mode=gateway_pb2.MODE_DART)
    assert reply.ids == plain_answer(verifier.target, [1, 2, 3], 24)
    assert "dartspec.gateway.relay" not in sys.modules


@pytest.mark.parametrize(
    ("fault", "late", "words"),
    [
        ("hang", True, "no answer in 200 ms"),
        ("fail", False, "told to fail"),
        ("gone", False, "refused"),
        ("few", False, "0 trees for 1 queries"),
    ],
)
async def test_a_search_that_fails_is_reported(fault: str, late: bool, words: str) -> None:
    class Ngram(FakeNgram):
        async def Search(self, request: Any, context: Any) -> ngram_pb2.SearchResponse:  # noqa: N802
            response = await super().Search(request, context)
            return ngram_pb2.SearchResponse() if fault == "few" else response

    verifier, ngram = FakeVerifier(), Ngram()
    ngram.hang = fault == "hang"
    ngram.fail = grpc.StatusCode.UNAVAILABLE if fault == "fail" else None
    async with serving(ngram) as address:
        routes = Routes("127.0.0.1:1" if fault == "gone" else address, timeout_ms=200)
        async with greeted(verifier, routes) as call:
            call.follow(1, PROMPT)
            call.allow(1, 1)
            await call.write(opening(1))
            assert (await heard(call))[1]
            assert await call.read() == Answered((1,), None)
            assert verifier.commands["verify"] == 0
    ((reason, was_late),) = routes.failed
    assert was_late == late
    assert words in reason


async def test_searching_goes_on_after_a_failure() -> None:
    verifier, ngram = FakeVerifier(), FakeNgram()
    ngram.fail = grpc.StatusCode.UNAVAILABLE
    async with serving(ngram) as address, greeted(verifier, Routes(address)) as call:
        for session, found in ((1, None), (2, 0.25)):
            call.follow(session, PROMPT)
            call.allow(session, 1)
            await call.write(opening(session))
            assert (await heard(call))[1]
            assert await call.read() == Answered((session,), found)
            ngram.fail = None
        assert ngram.streams == 2


async def test_a_refused_stream_says_why() -> None:
    class Refusing(FakeVerifier):
        async def Rounds(self, requests: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802
            await anext(aiter(requests))
            raise FailedPrecondition("hello.sampler: another one is spoken here", field="hello.sampler")
            yield

    async with serving(Refusing()) as address:
        relay = Relay(Routes("127.0.0.1:1"))  # type: ignore[arg-type]
        try:
            call = relay.open(address)
            await call.write(verifier_pb2.RoundsRequest(hello=verifier_pb2.Hello()))
            with pytest.raises(grpc.aio.AioRpcError) as failure:
                await call.read()
        finally:
            relay.close()
    error = error_from_rpc(failure.value, "verifier")
    assert (error.code, error.field) == (grpc.StatusCode.FAILED_PRECONDITION, "hello.sampler")
    assert error.message == "hello.sampler: another one is spoken here"


@pytest.mark.parametrize("address", ["127.0.0.1:1", "unix:/nowhere/socket"])
async def test_a_verifier_that_is_not_there_is_unavailable(address: str) -> None:
    relay = Relay(Routes("127.0.0.1:1"))  # type: ignore[arg-type]
    try:
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await relay.open(address).read()
    finally:
        relay.close()
    assert failure.value.code() == grpc.StatusCode.UNAVAILABLE


async def test_the_end_of_a_stream_is_no_error() -> None:
    class Brief(FakeVerifier):
        async def Rounds(self, requests: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802
            yield verifier_pb2.RoundsResponse(hello=self.hello)

    async with greeted(Brief(), Routes("127.0.0.1:1")) as call:
        assert await call.read() is None


async def test_over_unix_sockets(stack: StackMaker, tmp_path: Path) -> None:
    verifier, ngram = FakeVerifier(), FakeNgram()
    async with (
        serving(verifier, f"unix:{tmp_path}/verifier.sock") as verifier_address,
        serving(ngram, f"unix:{tmp_path}/ngram.sock") as ngram_address,
        stack([verifier_address], [ngram_address]) as s,
    ):
        reply = await s.generate(mode=gateway_pb2.MODE_DART, sampling={"max_tokens": 40})
    assert reply.ids == plain_answer(verifier.target, [1, 2, 3], 40)
    assert reply.finish.ledger.chain_fallbacks == 0


async def test_a_client_that_leaves_during_a_search_takes_nobody_along(stack: StackMaker) -> None:
    verifier, ngram = FakeVerifier(), FakeNgram()
    ngram.hang = True
    async with stack([verifier], [ngram], search_timeout_ms=1_000) as s:
        leaving = s.call(mode=gateway_pb2.MODE_DART)
        await until(lambda: ngram.batches)
        leaving.cancel()
        await until(lambda: not verifier.sessions)
        ngram.hang = False
        reply = await s.generate(mode=gateway_pb2.MODE_DART)
    assert reply.ids == plain_answer(verifier.target, [1, 2, 3], 24)
    assert verifier.streams == 1
