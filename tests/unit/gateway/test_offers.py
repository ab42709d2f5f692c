"""A verifier that ends plain credit with candidates, at any moment and with more credit on its way."""

from __future__ import annotations

import pytest

from dartspec.v1 import gateway_pb2
from tests.fakes import FakeNgram, FakeVerifier, plain_answer
from tests.unit.gateway.conftest import StackMaker

PROMPT = [1, 2, 3]


@pytest.mark.parametrize("period", [2, 3, 5, 17, 40])
async def test_answer_is_the_targets_own_when_drafting_pays_now_and_then(stack: StackMaker, period: int) -> None:
    verifier, ngram = FakeVerifier(), FakeNgram()
    verifier.pays = lambda generated: generated // period % 2 == 1
    expected = plain_answer(verifier.target, PROMPT, 200)
    async with stack([verifier], [ngram]) as s:
        reply = await s.generate(mode=gateway_pb2.MODE_AUTO, sampling={"max_tokens": 200})
    assert reply.ids == expected
    ledger = reply.finish.ledger
    assert ledger.mode == gateway_pb2.MODE_AUTO  # both were used
    assert ledger.dart_rounds == len(ngram.batches) > 0
    assert ledger.plain_steps > 0


async def test_credit_is_granted_ahead_and_not_asked_for_anew_at_every_step(stack: StackMaker) -> None:
    verifier, ngram = FakeVerifier(), FakeNgram()
    verifier.pays = lambda generated: False
    async with stack([verifier], [ngram]) as s:
        reply = await s.generate(mode=gateway_pb2.MODE_AUTO, sampling={"max_tokens": 100})
    assert (verifier.drafts, ngram.batches, verifier.commands["verify"]) == (0, [], 0)
    # As in plain mode: 32 steps, refilled when half is used.
    assert verifier.commands["decode"] == 1 + (99 - 16) // 16 + 1
    assert "faster" in reply.finish.ledger.mode_reason


async def test_credit_on_its_way_when_candidates_come_is_dropped(stack: StackMaker) -> None:
    verifier, ngram = FakeVerifier(), FakeNgram()
    # The gateway refills when it has seen 16 of 32 steps; by then the fake is further.
    verifier.pays = lambda generated: generated % 40 == 20
    expected = plain_answer(verifier.target, PROMPT, 400)
    async with stack([verifier], [ngram]) as s:
        reply = await s.generate(mode=gateway_pb2.MODE_AUTO, sampling={"max_tokens": 400})
        for _ in range(20):
            if verifier.stale:
                break
            again = await s.generate(mode=gateway_pb2.MODE_AUTO, sampling={"max_tokens": 400})
            assert again.ids == expected
    assert reply.ids == expected
    assert verifier.stale
