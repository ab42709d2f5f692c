"""The metrics are the sums of the ledgers that clients get, have a constant number of series, and come back to zero."""

from __future__ import annotations

import asyncio
import gc
import random
from collections import Counter
from itertools import pairwise
from typing import Any

import grpc
import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families

from dartspec.gateway.bounds import INTER_TOKEN_BOUNDS
from dartspec.gateway.convert import request_from_proto
from dartspec.services.common.errors import Evicted, NotFound
from dartspec.services.common.histogram import Histogram
from dartspec.v1 import gateway_pb2
from tests.fakes import FakeNgram, FakeVerifier
from tests.unit.gateway.conftest import Stack, StackMaker, until
from tests.unit.gateway.http_client import HTTP, MESSAGES, get_text, http_stack

PREFIX = "dartspec_gateway_"


async def scrape(s: Stack) -> dict[tuple[str, ...], float]:
    """By name and label values."""
    status, text = await get_text(s.gateway.http + "/metrics")
    assert status == 200
    return {
        (sample.name.removeprefix(PREFIX), *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def test_sums_are_those_of_the_ledgers(stack: StackMaker) -> None:
    async with stack([FakeVerifier()], [FakeNgram()], http_listen=HTTP) as s:
        replies = [
            await s.generate(mode=mode, sampling={"max_tokens": count})
            for mode in (gateway_pb2.MODE_PLAIN, gateway_pb2.MODE_DART)
            for count in (1, 7, 30)
        ]
        got = await scrape(s)
    ledgers = [reply.finish.ledger for reply in replies]
    for name, field in [
        ("rounds_total", "dart_rounds"),
        ("plain_steps_total", "plain_steps"),
        ("draft_tokens_total", "nodes_verified"),
        ("accepted_tokens_total", "accepted"),
        ("ngram_fallbacks_total", "chain_fallbacks"),
    ]:
        assert got[name,] == sum(getattr(ledger, field) for ledger in ledgers), name
    assert got["accepted_tokens_total",] > 0
    for part in ("draft", "search", "verify", "wait", "other"):
        total = sum(getattr(ledger, f"{part}_ms") for ledger in ledgers) / 1e3
        assert got["ledger_seconds_total", part] == pytest.approx(total)
    assert got["committed_tokens_total",] == 2 * (1 + 7 + 30)
    assert got["prompt_tokens_total",] == 3 * len(replies)
    assert got["requests_total", "plain", "length"] == 3
    assert got["requests_total", "dart", "length"] == 3
    assert got["requests_total", "dart", "stop"] == 0
    assert got["time_to_first_token_seconds_count",] == got["request_seconds_count",] == len(replies)
    assert got["time_to_first_token_seconds_sum",] == pytest.approx(sum(each.ttft_ms for each in ledgers) / 1e3)
    assert got["request_seconds_sum",] == pytest.approx(sum(each.total_ms for each in ledgers) / 1e3)
    assert got["inter_token_seconds_count",] == 2 * (1 + 7 + 30) - len(replies)
    assert got["inter_token_seconds_sum",] == pytest.approx(sum(each.decode_ms for each in ledgers) / 1e3)
    accepted = Counter[int]()
    for reply in replies[3:]:
        for chunk in reply.chunks[1:]:
            accepted.update(range(1, len(chunk.token_ids)))
    # The last span of an answer may be cut by max_tokens, and accept more than it delivers.
    for depth in range(1, 33):
        counted = got["accepted_tokens_per_position_total", str(depth)]
        assert accepted[depth] <= counted <= accepted[depth] + 3
    positions = [got["accepted_tokens_per_position_total", str(depth)] for depth in range(1, 33)]
    assert sum(positions) == got["accepted_tokens_total",]
    assert positions == sorted(positions, reverse=True)


async def test_what_is_open_counts_and_nothing_is_left_of_it(stack: StackMaker) -> None:
    verifier = FakeVerifier(context_length=100_000)
    verifier.step_seconds = 0.002
    async with stack([verifier], [FakeNgram()], http_listen=HTTP) as s:
        calls = [s.call(mode=1 + index % 3, sampling={"max_tokens": 50_000}) for index in range(6)]
        for call in calls:
            for _ in range(4):
                await call.read()
        before = await scrape(s)
        assert (before["running_requests",], before["waiting_requests",]) == (6, 0)
        assert before["committed_tokens_total",] >= 6 * 3
        for call in calls:
            await call.read()
        async with asyncio.timeout(10):
            while (later := await scrape(s))["committed_tokens_total",] == before["committed_tokens_total",]:
                await asyncio.sleep(0.01)  # work that had stopped for its reader goes on soon
        for call in calls:
            call.cancel()
        await until(lambda: s.gateway.generation.open_requests == 0)
        after = await scrape(s)
    counters = [key for key in before if key[0].endswith(("_total", "_count", "_sum", "_bucket"))]
    assert len(counters) > 60
    for key in counters:
        assert before[key] <= later[key] <= after[key], key
    assert later["committed_tokens_total",] > before["committed_tokens_total",]
    assert after["running_requests",] == after["waiting_requests",] == 0
    assert after["failures_total", "CANCELLED"] == 6
    assert after["request_seconds_count",] == 0


async def test_junk_makes_no_series(stack: StackMaker) -> None:
    async with http_stack(stack, [FakeVerifier()]) as (s, client):
        await s.generate()
        with pytest.raises(openai.NotFoundError):
            await client.chat.completions.create(model="junk", messages=MESSAGES)
        with pytest.raises(grpc.aio.AioRpcError):
            await s.generate(model="junk")
        series = (await scrape(s)).keys()
        rng = random.Random(5)

        async def ask(index: int) -> None:
            name = f"junk-{index}-{rng.random()}"
            request = gateway_pb2.GenerateRequest(model=name, request_id=name, stop=[name], text="x")
            with pytest.raises(NotFound):
                await anext(s.gateway.generation.generate(request_from_proto(request), None, client=name))

        await ask(0)
        objects = len(gc.get_objects())
        for index in range(1, 10_000):
            await ask(index)
        assert len(gc.get_objects()) < objects + 5_000  # nothing is kept of each
        after = await scrape(s)
        assert after.keys() == series
        assert after["failures_total", "NOT_FOUND"] == 10_002
        assert after["running_requests",] == after["waiting_requests",] == 0


async def test_failovers_and_fallbacks_are_counted(stack: StackMaker) -> None:
    verifier = FakeVerifier()
    verifier.fail_at = {5: Evicted("idle"), 9: Evicted("idle")}
    async with stack([verifier], http_listen=HTTP) as s:
        reply = await s.generate(mode=gateway_pb2.MODE_DART, sampling={"max_tokens": 40})
        got = await scrape(s)
    evicted = 2 - len(verifier.fail_at)
    assert got["failovers_total",] == evicted > 0
    assert got["ngram_fallbacks_total",] == reply.finish.ledger.chain_fallbacks > 0
    assert got["time_to_first_token_seconds_count",] == 1
    assert got["inter_token_seconds_count",] == 39


async def test_metrics_without_the_http_api(stack: StackMaker, caplog: Any) -> None:
    caplog.set_level("INFO", logger="dartspec.gateway.serve")
    async with stack([FakeVerifier()], metrics_listen=HTTP) as s:
        assert s.gateway.http == ""
        await s.generate()
        (url,) = (word for record in caplog.records for word in record.getMessage().split() if "/metrics" in word)
        status, text = await asyncio.to_thread(fetch, url)
    assert status == 200
    assert "dartspec_gateway_committed_tokens_total 24.0" in text


def fetch(url: str) -> tuple[int, str]:
    return asyncio.run(get_text(url))


def test_histograms_count_as_their_bounds_say() -> None:
    rng = random.Random(1)
    values = [
        (rng.choice([rng.random(), 10 * rng.random(), *INTER_TOKEN_BOUNDS]), rng.randrange(1, 5)) for _ in range(500)
    ]
    parts = [Histogram(INTER_TOKEN_BOUNDS), Histogram(INTER_TOKEN_BOUNDS)]
    for index, (value, times) in enumerate(values):
        parts[index % 2].add(value, times)
    parts[0].merge(parts[1])
    edges = [0.0, *INTER_TOKEN_BOUNDS, float("inf")]
    naive = [sum(n for v, n in values if low < v <= high) for low, high in pairwise(edges)]
    assert parts[0].counts == naive
    assert parts[0].sum == pytest.approx(sum(value * times for value, times in values))
