"""Trees from ngram services, and the verifier's chains where none answers."""

from __future__ import annotations

import asyncio

import grpc
import pytest

from dartspec.v1 import gateway_pb2, ngram_pb2
from tests.fakes import FakeNgram, FakeVerifier, plain_answer, serving
from tests.unit.gateway.conftest import StackMaker

DART = gateway_pb2.MODE_DART
PROMPT = [1, 2, 3]


@pytest.mark.parametrize("fault", [grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.NOT_FOUND, "hang", "absent"])
async def test_without_a_tree_the_verifiers_chain_stands_in(stack: StackMaker, fault: object) -> None:
    verifier, ngram = FakeVerifier(), FakeNgram()
    ngram.hang = fault == "hang"
    ngram.fail = fault if isinstance(fault, grpc.StatusCode) else None
    ngrams = [] if fault == "absent" else [ngram]
    async with stack([verifier], ngrams, search_timeout_ms=50) as s:
        reply = await s.generate(mode=DART, sampling={"max_tokens": 80})
    ledger = reply.finish.ledger
    assert reply.ids == plain_answer(verifier.target, PROMPT, 80)
    assert ledger.chain_fallbacks == ledger.dart_rounds > 0
    assert ledger.nodes_offered == 4 * ledger.dart_rounds
    assert ledger.search_ms == 0.0
    assert ledger.accepted > 0
    # A service that fails rests, rather than costing every round its time-out.
    assert len(ngram.batches) < ledger.dart_rounds / 2


async def test_a_refused_search_does_not_count_against_the_service(stack: StackMaker) -> None:
    verifier, ngram = FakeVerifier(), FakeNgram()
    ngram.fail = grpc.StatusCode.INVALID_ARGUMENT
    async with stack([verifier], [ngram]) as s:
        reply = await s.generate(mode=DART, sampling={"max_tokens": 40})
    assert reply.ids == plain_answer(verifier.target, PROMPT, 40)
    ledger = reply.finish.ledger
    # The relay asks once. What ended the stream is asked again by itself each time, to know whose fault it was.
    assert ledger.chain_fallbacks == ledger.dart_rounds == (len(ngram.batches) - 1) / 2 > 1


async def test_search_recovers_by_itself(stack: StackMaker) -> None:
    verifier, ngram = FakeVerifier(), FakeNgram()
    ngram.fail = grpc.StatusCode.UNAVAILABLE
    async with stack([verifier], [ngram]) as s:
        first = await s.generate(mode=DART)
        assert first.finish.ledger.chain_fallbacks == first.finish.ledger.dart_rounds
        ngram.fail = None
        async with asyncio.timeout(20):
            while (await s.generate(mode=DART)).finish.ledger.chain_fallbacks:
                await asyncio.sleep(0.05)


async def test_a_dead_service_leaves_the_search_to_another(stack: StackMaker) -> None:
    async with serving(FakeNgram()) as gone:
        pass
    verifier, ngram = FakeVerifier(), FakeNgram()
    async with stack([verifier], [gone, ngram]) as s:
        reply = await s.generate(mode=DART)
    assert reply.finish.ledger.chain_fallbacks == 0
    assert len(ngram.batches) == reply.finish.ledger.dart_rounds


async def test_a_service_that_had_no_time_left_has_not_failed(stack: StackMaker) -> None:
    verifier, hanging, ngram = FakeVerifier(), FakeNgram(), FakeNgram()
    hanging.hang = True
    async with stack([verifier], [hanging, ngram], search_timeout_ms=50, relay="off") as s:
        ledger = (await s.generate(mode=DART)).finish.ledger
    assert ledger.chain_fallbacks == len(hanging.batches)
    assert len(ngram.batches) == ledger.dart_rounds - ledger.chain_fallbacks > 0


async def test_the_service_of_the_own_node_is_preferred(stack: StackMaker, tmp_path: object) -> None:
    verifier, far, near, unix = FakeVerifier(), FakeNgram(), FakeNgram(), FakeNgram()
    async with (
        serving(near) as near_address,
        serving(unix, f"unix:{tmp_path}/ngram.sock") as unix_address,
        stack([verifier], [far], node="here") as s,
    ):
        await s.generate(mode=DART)
        record = gateway_pb2.ServiceRecord(
            kind=gateway_pb2.SERVICE_KIND_NGRAM,
            address=near_address,
            node="here",
            tokenizer_fingerprints=[verifier.hello.tokenizer_fingerprint],
        )
        await s.registry.Announce(gateway_pb2.AnnounceRequest(record=record))
        used = len(far.batches)
        await s.generate(mode=DART)
        assert len(far.batches) == used > 0
        assert len(near.batches) > 0
        record.address = unix_address
        await s.registry.Announce(gateway_pb2.AnnounceRequest(record=record))
        used = len(near.batches)
        await s.generate(mode=DART)
        assert len(near.batches) == used
        assert len(unix.batches) > 0


async def test_a_service_for_another_tokenizer_is_not_asked(stack: StackMaker) -> None:
    verifier, other = FakeVerifier(), FakeNgram()
    async with serving(other) as address, stack([verifier]) as s:
        record = gateway_pb2.ServiceRecord(
            kind=gateway_pb2.SERVICE_KIND_NGRAM, address=address, tokenizer_fingerprints=["another"]
        )
        await s.registry.Announce(gateway_pb2.AnnounceRequest(record=record))
        reply = await s.generate(mode=DART)
    assert other.batches == []
    assert reply.finish.ledger.chain_fallbacks == reply.finish.ledger.dart_rounds


async def test_what_is_sent(stack: StackMaker) -> None:
    verifier, ngram = FakeVerifier(eos=[260]), FakeNgram()
    settings = {"search": "reference", "score_rule": "witten_bell", "node_budget": 100, "beam_width": 7}
    async with stack([verifier], [ngram], **settings) as s:
        reply = await s.generate(mode=DART, sampling={"ignore_eos": True})
    params = ngram.requests[0].params
    assert (params.mode, params.beam_width) == (ngram_pb2.SEARCH_MODE_REFERENCE, 7)
    assert params.score_rule == ngram_pb2.SCORE_RULE_WITTEN_BELL
    assert params.node_budget == 64  # the most that the verifier takes
    assert list(params.stop_token_ids) == [260]
    tokens = [*PROMPT, *reply.ids]
    position = 3
    for request in ngram.requests:
        context = list(request.queries[0].context)
        position = next(p for p in range(position, len(tokens)) if tokens[p - 3 : p + 1] == context)


async def test_no_more_is_searched_for_than_the_verifier_wants(stack: StackMaker) -> None:
    verifier, ngram = FakeVerifier(), FakeNgram()
    verifier.search_nodes = 6
    async with stack([verifier], [ngram], search="reference", node_budget=50, beam_width=7) as s:
        await s.generate(mode=DART)
        verifier.search_nodes = 0
        await s.generate(mode=DART)
    asked = {(request.params.node_budget, request.params.beam_width) for request in ngram.requests}
    assert asked == {(6, 6), (50, 7)}


async def test_rounds_that_came_together_are_searched_and_answered_together(stack: StackMaker) -> None:
    verifier, ngram = FakeVerifier(), FakeNgram()
    verifier.step_seconds = 0.01
    async with stack([verifier], [ngram]) as s:
        replies = await asyncio.gather(*[s.generate(mode=DART, sampling={"max_tokens": 60}) for _ in range(16)])
    rounds = sum(reply.finish.ledger.dart_rounds for reply in replies)
    assert sum(ngram.batches) == rounds
    # All 16 were open after the first steps, and each step of the verifier makes one search and one message.
    assert max(ngram.batches) == 16
    assert len(ngram.batches) <= len(verifier.responses)
    assert len(verifier.batches) <= len(verifier.responses) + 16
    assert sorted(verifier.batches)[-1] == 16


async def test_auto_mode_follows_the_verifier(stack: StackMaker) -> None:
    verifier, ngram = FakeVerifier(), FakeNgram()
    async with stack([verifier], [ngram], policy="verifier") as s:
        drafted = await s.generate(sampling={"max_tokens": 60})
        assert drafted.finish.ledger.dart_rounds > 0
        assert drafted.finish.ledger.mode_reason == "the verifier offers candidates"
        verifier.no_draft_reason = 4  # DOES_NOT_PAY
        verifier.commands.clear()
        plain = await s.generate(sampling={"max_tokens": 61})
        assert plain.ids == plain_answer(verifier.target, PROMPT, 61)
        assert (plain.finish.ledger.dart_rounds, plain.finish.ledger.plain_steps) == (0, 60)
        assert plain.finish.ledger.mode == gateway_pb2.MODE_PLAIN
        assert plain.finish.ledger.mode_reason == "the verifier expects plain decoding to be faster"
        assert verifier.commands["decode"] == 4  # 32 steps, then 16 whenever 16 are left
        forced = await s.generate(mode=DART, sampling={"max_tokens": 40})
        assert forced.ids == plain.ids[:40]
        assert verifier.opens[-1].always_draft
        assert forced.finish.ledger.dart_rounds > 0
        assert forced.finish.ledger.plain_steps <= 1  # the last token may lie near the limit
        assert forced.finish.ledger.mode_reason == "asked for by the request"


async def test_the_servers_mode_counts_where_the_request_leaves_it_open(stack: StackMaker) -> None:
    verifier = FakeVerifier()
    async with stack([verifier], mode="plain") as s:
        reply = await s.generate()
        assert (reply.finish.ledger.plain_steps, reply.finish.ledger.mode_reason) == (23, "set by the server")
        assert reply.start.mode == gateway_pb2.MODE_AUTO
        forced = await s.generate(mode=DART)
        assert forced.finish.ledger.dart_rounds > 0


async def test_trees_are_forwarded_as_they_came(stack: StackMaker) -> None:
    verifier, ngram = FakeVerifier(), FakeNgram()
    async with stack([verifier], [ngram]) as s:
        await s.generate(mode=DART)
    assert verifier.trees == ngram.trees
    assert len(ngram.trees) > 1
