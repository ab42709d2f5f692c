"""Trees are searched the moment proposals come, whatever their session does meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from dartspec.gateway.offers import Offers
from dartspec.gateway.search import Found
from dartspec.gateway.types import Round, RoundKind
from dartspec.v1 import common_pb2, gateway_pb2
from tests.fakes import FakeNgram, FakeVerifier
from tests.unit.gateway.conftest import StackMaker

MODEL: Any = object()
PROPOSALS = common_pb2.Proposals(revision=1)


class Search:
    """Notes what is searched; `found[i]` is the i-th answer."""

    def __init__(self) -> None:
        self.asked: list[tuple[list[int], int]] = []
        self.found: list[asyncio.Future[Found]] = []

    def begin(
        self, model: Any, context: Sequence[int], proposals: common_pb2.Proposals, nodes: int = 0
    ) -> asyncio.Future[Found]:
        assert (model, proposals) == (MODEL, PROPOSALS)
        self.asked.append((list(context), nodes))
        self.found.append(asyncio.get_running_loop().create_future())
        return self.found[-1]


def plain(*token_ids: int) -> Round:
    return Round(RoundKind.DECODE, 9, token_ids, (0.0,) * len(token_ids))


def offer(*token_ids: int, nodes: int = 0) -> Round:
    return Round(RoundKind.VERIFY, 9, token_ids, (0.0,) * len(token_ids), proposals=PROPOSALS, search_nodes=nodes)


async def test_a_search_begins_when_the_round_comes_behind_all_tokens_before_it() -> None:
    search: Any = Search()
    offers = Offers((1, 2, 3, 4, 5), MODEL, search, lambda: True)
    last = offer(8, 9, nodes=16)
    for round in (plain(6), plain(7), last):
        offers.heard(round, answering=False)
    assert search.asked == [([6, 7, 8, 9], 16)]
    tree = Found(None, 1.5)
    search.found[0].set_result(tree)
    assert await offers.tree(last) is tree
    assert len(search.asked) == 1


async def test_a_tree_is_that_of_the_last_round() -> None:
    search: Any = Search()
    offers = Offers((1, 2), MODEL, search, lambda: True)
    offers.heard(offer(3), answering=False)  # never asked for
    last = offer(4)
    offers.heard(last, answering=False)
    assert search.asked == [([1, 2, 3], 0), ([1, 2, 3, 4], 0)]
    search.found[0].set_result(Found(None, 1.0))
    search.found[1].set_result(Found(None, 2.0))
    assert (await offers.tree(last)).search_ms == 2.0


async def test_a_session_that_may_not_draft_searches_only_when_asked_to() -> None:
    search: Any = Search()
    offers = Offers((1,), MODEL, search, lambda: False)
    last = offer(2)
    offers.heard(last, answering=False)
    assert search.asked == []
    asked = asyncio.create_task(offers.tree(last))
    await asyncio.sleep(0)
    assert search.asked == [([1, 2], 0)]
    search.found[0].set_result(Found(None))
    await asked


async def test_a_stop_string_may_cost_one_search_and_no_pass(stack: StackMaker) -> None:
    verifier, ngram = FakeVerifier(), FakeNgram()
    async with stack([verifier], [ngram]) as s:
        whole = await s.generate(mode=gateway_pb2.MODE_DART, sampling={"max_tokens": 40})
        searched, verified = len(ngram.batches), verifier.commands["verify"]
        assert searched == verified
        stop = whole.text[len(whole.text) // 2 :][:3]
        await s.generate(mode=gateway_pb2.MODE_DART, sampling={"max_tokens": 40}, stop=[stop])
    searched, verified = len(ngram.batches) - searched, verifier.commands["verify"] - verified
    assert 0 < verified <= searched <= verified + 1
