"""The same tokens in every mode, with any tree, and whatever fails on the way."""

from __future__ import annotations

import pytest

from dartspec.v1 import gateway_pb2
from tests.fakes import FakeNgram, FakeVerifier, logprob, plain_answer
from tests.unit.gateway.conftest import StackMaker

PROMPT = [1, 2, 3]
MODES = [gateway_pb2.MODE_PLAIN, gateway_pb2.MODE_DART, gateway_pb2.MODE_AUTO]


@pytest.mark.parametrize("mode", MODES)
async def test_answer_is_the_targets_own(stack: StackMaker, mode: int) -> None:
    verifier, ngram = FakeVerifier(), FakeNgram()
    expected = plain_answer(verifier.target, PROMPT, 60)
    async with stack([verifier], [ngram]) as s:
        reply = await s.generate(mode=mode, sampling={"max_tokens": 60})
    assert reply.ids == expected
    tokens = [*PROMPT, *expected]
    assert reply.logprobs == [logprob(tokens, 3 + i) for i in range(60)]
    assert reply.text == verifier.tokenizer.decode(expected)
    assert reply.finish.reason == 2  # FINISH_REASON_LENGTH
    assert reply.start.mode == mode


async def test_plain_mode_neither_drafts_nor_searches(stack: StackMaker) -> None:
    verifier, ngram = FakeVerifier(), FakeNgram()
    verifier.step_seconds = 0.01  # so that no refill comes too late to be sent
    async with stack([verifier], [ngram]) as s:
        reply = await s.generate(mode=gateway_pb2.MODE_PLAIN, sampling={"max_tokens": 110})
    assert (verifier.drafts, ngram.batches, verifier.commands["verify"]) == (0, [], 0)
    assert verifier.opens[0].plain_only
    ledger = reply.finish.ledger
    assert (ledger.mode, ledger.plain_steps, ledger.dart_rounds) == (gateway_pb2.MODE_PLAIN, 109, 0)
    # Credit of 32 steps, refilled when half is used: a refill after every 16 steps.
    assert verifier.commands["decode"] == 1 + 109 // 16


async def test_dart_mode_commits_more_than_one_token_a_round(stack: StackMaker) -> None:
    verifier, ngram = FakeVerifier(), FakeNgram()
    async with stack([verifier], [ngram]) as s:
        reply = await s.generate(mode=gateway_pb2.MODE_DART, sampling={"max_tokens": 200})
    ledger = reply.finish.ledger
    assert ledger.mode == gateway_pb2.MODE_DART or ledger.plain_steps <= 1  # the last token may lie near the limit
    assert ledger.dart_rounds == len(ngram.batches)
    assert ledger.dart_committed > 1.5 * ledger.dart_rounds
    assert ledger.accepted == ledger.dart_committed - ledger.dart_rounds
    assert ledger.nodes_verified == 8 * ledger.dart_rounds
    assert reply.finish.usage.rejected_tokens == ledger.nodes_verified - ledger.accepted
    assert ledger.chain_fallbacks == 0
