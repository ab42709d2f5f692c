"""Searches on one stream: every search its own answer, whatever happens to those before it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from dartspec.gateway.ngram_client import NgramClient, SearchError
from dartspec.services.common.convert import proposals_to_proto
from dartspec.services.common.types import Proposals
from dartspec.v1 import ngram_pb2
from tests.fakes import FakeNgram, serving

BAD, SLOW, LATE = 666, 777, 888


class Particular(FakeNgram):
    """Refuses BAD in a context, never answers SLOW, and LATE after a while."""

    async def Search(self, request: Any, context: Any) -> ngram_pb2.SearchResponse:  # noqa: N802
        if BAD in request.queries[0].context:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "queries[0].context: 666 is beyond the vocabulary")
        if SLOW in request.queries[0].context:
            await asyncio.Event().wait()
        if LATE in request.queries[0].context:
            await asyncio.sleep(0.2)
        return await super().Search(request, context)


def request(number: int, *context: int) -> ngram_pb2.SearchRequest:
    ids = [np.array([number, 1000 + number], np.int32)] * 2
    proposals = Proposals(tuple(ids), (np.array([-0.5, -1.0], np.float32),) * 2)
    query = ngram_pb2.SearchQuery(context=context, proposals=proposals_to_proto(proposals))
    return ngram_pb2.SearchRequest(queries=[query])


def first_token(response: ngram_pb2.SearchResponse) -> int:
    return int(np.frombuffer(response.trees[0].token_ids, "<i4")[0])


async def test_searches_at_once_get_their_own_answers_on_one_stream() -> None:
    ngram = Particular()
    async with serving(ngram) as address:
        client = NgramClient(address, None)
        for _ in range(3):
            responses = await asyncio.gather(*(client.search(request(number), 5) for number in range(40)))
            assert [first_token(response) for response in responses] == list(range(40))
        await client.close()
    assert ngram.streams == 1


async def test_a_refused_search_takes_no_other_with_it() -> None:
    ngram = Particular()
    async with serving(ngram) as address:
        client = NgramClient(address, None)
        searches = [client.search(request(number, *([BAD] if number in (3, 4, 9) else [])), 5) for number in range(12)]
        results = await asyncio.gather(*searches, return_exceptions=True)
        await client.close()
    for number, result in enumerate(results):
        if number in (3, 4, 9):
            assert isinstance(result, SearchError)
            assert result.refused
            assert str(result) == "INVALID_ARGUMENT: queries[0].context: 666 is beyond the vocabulary"
        else:
            assert isinstance(result, ngram_pb2.SearchResponse)
            assert first_token(result) == number


async def test_a_search_that_takes_too_long_takes_no_other_with_it() -> None:
    async with serving(Particular()) as address:
        client = NgramClient(address, None)
        assert first_token(await client.search(request(1), 5)) == 1
        slow = asyncio.create_task(client.search(request(2, SLOW), 0.05))
        await asyncio.sleep(0.01)
        behind = [client.search(request(number), 5) for number in range(3, 9)]
        assert [first_token(response) for response in await asyncio.gather(*behind)] == list(range(3, 9))
        with pytest.raises(SearchError, match="no answer in 50 ms") as caught:
            await slow
        assert not caught.value.refused
        await client.close()


async def test_a_service_started_anew_is_not_taken_for_one_that_fails(tmp_path: Path) -> None:
    place = f"unix:{tmp_path}/ngram.sock"
    client = NgramClient(place, None)
    for number in range(3):
        async with serving(Particular(), place):
            assert first_token(await client.search(request(number), 5)) == number
    with pytest.raises(SearchError, match="UNAVAILABLE"):
        await client.search(request(3), 5)
    await client.close()


async def test_a_cancelled_search_leaves_the_stream_to_the_others() -> None:
    ngram = Particular()
    async with serving(ngram) as address:
        client = NgramClient(address, None)
        assert first_token(await client.search(request(1), 5)) == 1
        searches = [asyncio.create_task(client.search(request(number), 5)) for number in range(2, 8)]
        for _ in range(3):
            await asyncio.sleep(0)
        searches[2].cancel()
        results = await asyncio.gather(*searches, return_exceptions=True)
        assert isinstance(results.pop(2), asyncio.CancelledError)
        assert [first_token(result) for result in results] == [2, 3, 5, 6, 7]  # type: ignore[arg-type]
        await client.close()


async def test_closing_tells_who_waits() -> None:
    async with serving(Particular()) as address:
        client = NgramClient(address, None)
        waiting = asyncio.create_task(client.search(request(1, SLOW), 5))
        await asyncio.sleep(0.05)
        await client.close()
        with pytest.raises(SearchError, match="no longer among the services"):
            await waiting


async def test_a_service_that_leaves_may_answer_what_it_was_asked() -> None:
    async with serving(Particular()) as address:
        client = NgramClient(address, None)
        waiting = [asyncio.create_task(client.search(request(number, LATE), 5)) for number in (1, 2)]
        await asyncio.sleep(0.05)
        await client.close(grace=10)
        assert [first_token(await search) for search in waiting] == [1, 2]
        with pytest.raises(SearchError, match="no longer among the services"):
            await client.search(request(3), 5)
