"""Candidates that end plain credit: what is left of it lapses, and so does credit that was on its way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import grpc
import pytest

from dartspec.services.common.types import Tree
from dartspec.services.verifier.budget import FixedBudget
from dartspec.services.verifier.decoder import Decoder
from dartspec.services.verifier.gain import Gain
from dartspec.services.verifier.messages import NoDraft

from .driver import GREEDY, FakeOwner, held, running
from .tiny import MAX_NODES, plain, tiny_decoder

PROMPT = (5, 6, 7)
SAMPLING = replace(GREEDY, max_tokens=40)


class Scripted(FixedBudget):
    """Drafting pays at the chances whose numbers are given."""

    def __init__(self, chances: Sequence[int]) -> None:
        super().__init__(MAX_NODES)
        self._chances = frozenset(chances)
        self._count = 0

    def pays(self, gain: Gain, sessions: int) -> bool:
        self._count += 1
        return self._count in self._chances


@pytest.fixture(scope="module")
def decoder() -> Decoder:
    return tiny_decoder()


def test_candidates_come_in_the_middle_of_credit_and_the_answer_goes_on(decoder: Decoder) -> None:
    truth = plain(decoder, PROMPT, SAMPLING, 0)
    with running(decoder, policy=Scripted([4, 9])) as engine:
        owner = FakeOwner(engine)
        owner.open(1, PROMPT, SAMPLING)
        event = owner.round(1)
        answer, offers = list(event.token_ids), 0
        while event.finish is None:
            if event.proposals is not None:
                offers += 1
                owner.verify(1, event.n, None, draft_after=False)
                left = 1
            else:
                owner.decode(1, event.n, 10, draft_after=True, may_offer=True)
                left = 10
            while left and event.finish is None:
                event = owner.round(1)
                answer += event.token_ids
                left = 0 if event.proposals is not None else left - 1
        assert owner.nothing_more()
    assert (answer, offers) == (truth, 2)


def test_credit_that_was_on_its_way_is_ignored(decoder: Decoder) -> None:
    truth = plain(decoder, PROMPT, SAMPLING, 0)
    with running(decoder, policy=Scripted([3])) as engine:
        owner = FakeOwner(engine)
        owner.open(1, PROMPT, SAMPLING)
        n = owner.round(1).n
        owner.decode(1, n, 8, draft_after=True, may_offer=True)
        events = [owner.round(1) for _ in range(3)]
        assert [event.proposals is not None for event in events] == [False, False, True]
        assert [event.no_draft for event in events] == [NoDraft.DOES_NOT_PAY] * 2 + [None]
        # Two refills that were sent before the candidates arrived, and then what answers them.
        with held(engine):
            owner.decode(1, n + 8, 4, draft_after=True, may_offer=True)
            owner.decode(1, n + 12, 4, draft_after=True, may_offer=True)
            owner.verify(1, n + 3, Tree.empty())
        event = owner.round(1)
        assert event.n == n + 4
        # Credit for the same position is credit again once the candidates have been answered.
        owner.decode(1, n + 4, 4)
        owner.decode(1, n + 8, 4)
        assert [owner.round(1).n for _ in range(8)] == list(range(n + 5, n + 13))
        answer = engine.call(lambda: list(engine._sessions._sessions[owner, 1].tokens[len(PROMPT) :])).result()
    assert answer == truth[: len(answer)]


def test_plain_credit_may_answer_candidates_too(decoder: Decoder) -> None:
    with running(decoder, policy=Scripted([1])) as engine:
        owner = FakeOwner(engine)
        owner.open(1, PROMPT, SAMPLING)
        n = owner.round(1).n
        owner.decode(1, n, 8, draft_after=True, may_offer=True)
        assert owner.round(1).proposals is not None
        owner.decode(1, n + 1, 2)
        assert [owner.round(1).n for _ in range(2)] == [n + 2, n + 3]
        # Nothing is on its way any more, so this is no refill.
        owner.decode(1, n + 8, 1)
        assert owner.failure(1).error.code is grpc.StatusCode.INVALID_ARGUMENT
