"""The policy at work: sessions that are kept from drafting, their tokens, classes and the drift of heads."""

from __future__ import annotations

import random
from typing import Any

import pytest

from dartspec.gateway.classes import OTHER, Classes, request_class
from dartspec.gateway.drift import AcceptanceDrift
from dartspec.gateway.link import VerifierLink
from dartspec.gateway.route import route_from_metadata
from dartspec.gateway.steering import Steering
from dartspec.gateway.types import Mode, Opening, Round, RoundKind
from dartspec.services.common.errors import InvalidArgument
from dartspec.services.common.types import Sampling
from dartspec.v1 import common_pb2, gateway_pb2
from tests.fakes import FakeNgram, FakeVerifier, plain_answer
from tests.unit.gateway.conftest import StackMaker

PROMPT = [1, 2, 3]


@pytest.mark.parametrize("often", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("pays", [True, False])
async def test_tokens_are_the_same_however_often_drafting_is_taken_away_and_given_back(
    stack: StackMaker, monkeypatch: pytest.MonkeyPatch, often: float, pays: bool
) -> None:
    rng = random.Random(7)

    def speculates(link: VerifierLink, session: Any) -> bool:
        return rng.random() < often

    monkeypatch.setattr(VerifierLink, "speculates", speculates)
    verifier, ngram = FakeVerifier(), FakeNgram()
    verifier.pays = (lambda generated: True) if pays else (lambda generated: generated % 5 == 0)
    async with stack([verifier], [ngram]) as s:
        reply = await s.generate(mode=gateway_pb2.MODE_AUTO, sampling={"max_tokens": 200})
    assert reply.ids == plain_answer(verifier.target, PROMPT, 200)
    assert reply.finish.ledger.plain_steps > 0
    if pays and often >= 0.5:
        assert reply.finish.ledger.dart_rounds > 0


async def test_a_session_that_is_kept_plain_drafts_and_searches_nothing_and_says_why(
    stack: StackMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(VerifierLink, "speculates", lambda link, session: False)
    verifier, ngram = FakeVerifier(), FakeNgram()
    async with stack([verifier], [ngram]) as s:
        reply = await s.generate(mode=gateway_pb2.MODE_AUTO, sampling={"max_tokens": 60})
        assert s.gateway.generation.stats.totals().reasons == {reply.finish.ledger.mode_reason: 1}
        forced = await s.generate(mode=gateway_pb2.MODE_DART, sampling={"max_tokens": 60})
    assert reply.finish.ledger.mode == gateway_pb2.MODE_PLAIN
    assert "of this kind" in reply.finish.ledger.mode_reason
    assert verifier.drafts - forced.finish.ledger.dart_rounds <= 1  # the one that came with the first token
    assert forced.finish.ledger.mode == gateway_pb2.MODE_DART  # what was asked for is kept


def round_of(kind: RoundKind, n: int, tokens: int) -> Round:
    return Round(kind, n, tuple(range(tokens)), (0.0,) * tokens, accepted=tokens - 1)


def test_only_auto_sessions_are_steered_and_ended_ones_are_forgotten() -> None:
    steering = Steering(enabled=True)

    def opening(mode: Mode) -> Opening:
        return Opening((1,), 1, Sampling(temperature=0.0, max_tokens=9), 0, mode, 0, "r", "a/short/greedy")

    steering.opened(1, opening(Mode.AUTO))
    steering.opened(2, opening(Mode.PLAIN))
    now = 0.0
    for step in range(200):  # drafts bring nothing and take twice as long
        drafting = steering.speculates(1, now)
        now += 0.2 if drafting else 0.1
        kind = RoundKind.VERIFY if drafting else RoundKind.DECODE
        load = common_pb2.LoadReport(running_sessions=2, committed_tokens=2 * step)
        steering.heard([(1, round_of(kind, step, 1)), (2, round_of(RoundKind.DECODE, step, 1))], load, now)
    assert not steering.speculates(1, now)
    assert steering.speculates(2, now)  # not the policy's business
    assert steering.plain_classes() == 1
    steering.closed(1)
    steering.heard([], common_pb2.LoadReport(), now)
    assert steering.plain_classes() == 0


def test_classes_are_bounded() -> None:
    classes = Classes(most=2)
    assert [classes.admit(name) for name in ("a", "b", "c", "a")] == ["a", "b", OTHER, "a"]
    assert request_class("code", 300, 0.0) == "code/medium/greedy"
    assert request_class("", 10, 0.7) == "any/short/sampled"


def test_the_task_comes_from_the_metadata() -> None:
    assert route_from_metadata([("dartspec-task", "mt-bench.1")]).task == "mt-bench.1"
    for wrong in ("with space", "x" * 33, "ä"):
        with pytest.raises(InvalidArgument, match="dartspec-task"):
            route_from_metadata([("dartspec-task", wrong)])


def test_drift_needs_evidence_and_does_not_flap() -> None:
    drift = AcceptanceDrift()
    assert not drift.observe(2.0, 1.0, 100)
    assert drift.observe(2.0, 1.0, 600)  # half of the card's: on
    assert drift.drifting
    assert not drift.observe(2.0, 1.5, 700)  # three quarters: stays on
    assert drift.observe(2.0, 1.7, 800)  # above four fifths: off
    assert not drift.drifting
    assert not drift.observe(2.0, 1.5, 900)  # and off it stays above 70%
    assert not AcceptanceDrift().observe(0.0, 1.0, 10_000)  # a card that says nothing
