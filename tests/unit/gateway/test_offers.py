"""A verifier that ends plain credit with candidates, at any moment and with more credit on its way."""

from __future__ import annotations

from typing import Any

import pytest

from dartspec.gateway.session import Session
from dartspec.gateway.types import Mode, Opening
from dartspec.services.common.types import Sampling
from dartspec.v1 import common_pb2, gateway_pb2, verifier_pb2
from tests.fakes import FakeNgram, FakeVerifier, plain_answer
from tests.unit.gateway.conftest import StackMaker

PROMPT = [1, 2, 3]


@pytest.mark.parametrize("period", [2, 3, 5, 17, 40])
async def test_answer_is_the_targets_own_when_drafting_pays_now_and_then(stack: StackMaker, period: int) -> None:
    verifier, ngram = FakeVerifier(), FakeNgram()
    verifier.pays = lambda generated: generated // period % 2 == 1
    expected = plain_answer(verifier.target, PROMPT, 200)
    async with stack([verifier], [ngram], policy="verifier") as s:
        reply = await s.generate(mode=gateway_pb2.MODE_AUTO, sampling={"max_tokens": 200})
    assert reply.ids == expected
    ledger = reply.finish.ledger
    assert ledger.mode == gateway_pb2.MODE_AUTO  # both were used
    assert ledger.dart_rounds == len(ngram.batches) > 0
    assert ledger.plain_steps > 0


async def test_credit_is_granted_ahead_and_not_asked_for_anew_at_every_step(stack: StackMaker) -> None:
    verifier, ngram = FakeVerifier(), FakeNgram()
    verifier.pays = lambda generated: False
    verifier.step_seconds = 0.01  # so that no refill comes too late to be sent
    async with stack([verifier], [ngram], policy="verifier") as s:
        reply = await s.generate(mode=gateway_pb2.MODE_AUTO, sampling={"max_tokens": 110})
    assert (verifier.drafts, ngram.batches, verifier.commands["verify"]) == (0, [], 0)
    # As in plain mode: 32 steps, refilled when half is used.
    assert verifier.commands["decode"] == 1 + 109 // 16
    assert "faster" in reply.finish.ledger.mode_reason


async def test_what_is_left_of_credit_lapses_when_candidates_come() -> None:
    sent: list[verifier_pb2.Command] = []
    opening = Opening(tuple(PROMPT), 3, Sampling(0.0, 100), 0, Mode.AUTO, 0, "r")
    session = Session(1, opening, sent.append, lambda _session, _tell: None)
    session.deliver(event(3, 7))
    session.decode(8, draft_after=True, may_offer=True)
    session.deliver(event(4, 8))
    session.decode(4, draft_after=True, may_offer=True)  # on its way when the next event arrives
    assert (sent[-1].decode.n, session.credit, session.offered) == (4 + 7, 11, False)
    session.deliver(event(5, 9, proposals=common_pb2.Proposals(revision=1)))
    assert (session.credit, session.ahead, session.offered) == (0, 3, True)
    for _ in range(3):
        await session.next_round()
    session.verify(None, draft_after=True)
    assert (sent[-1].verify.n, session.credit, session.offered) == (5, 1, False)


def event(n: int, token: int, **fields: Any) -> verifier_pb2.Event:
    round = verifier_pb2.RoundEvent(n=n, token_ids=[token], logprobs=[-0.5], margins=[0.5], **fields)
    return verifier_pb2.Event(session=1, round=round)
