"""The rate of clients at work, on a clock that stands still unless everybody waits."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from typing import Any

import pytest

from bench import concurrency
from dartspec.cli.prompts import Prompt


class Clock:
    """Seconds that pass when `pass_time` has nobody else to run."""

    def __init__(self) -> None:
        self.now = 0.0
        self._waiting: list[tuple[float, int, asyncio.Future[None]]] = []

    def perf_counter(self) -> float:
        return self.now

    async def wait(self, seconds: float) -> None:
        woken = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (self.now + seconds, id(woken), woken))
        await woken

    async def pass_time(self) -> None:
        while True:
            for _ in range(10):
                await asyncio.sleep(0)
            if self._waiting:
                self.now, _, woken = heapq.heappop(self._waiting)
                woken.set_result(None)


class Client:
    """Answers "A B": B chunks of two tokens, A seconds apart."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    async def answer(self, prompt: str, settings: Any, on_tokens: Callable[[int], object]) -> None:
        apart, chunks = map(int, prompt.split())
        for _ in range(chunks):
            await self.clock.wait(apart)
            on_tokens(2)


@pytest.mark.parametrize(
    ("prompts", "expected"),
    [
        # From second 2 to second 12: the first client brings 2 tokens each second, the second one each.
        (["1 12", "2 9"], (20 + 10) / 10),
        # The last answer, which runs alone, does not count, nor what came before the slower client began.
        (["1 4", "3 2", "1 2", "1 100"], (6 + 2) / 3),
    ],
)
async def test_tokens_count_while_all_clients_are_at_work(
    monkeypatch: pytest.MonkeyPatch, prompts: list[str], expected: float
) -> None:
    clock = Clock()
    monkeypatch.setattr(concurrency, "time", clock)
    passing = asyncio.create_task(clock.pass_time())
    side: Any = (Client(clock), None)
    texts = [Prompt(str(number), text) for number, text in enumerate(prompts)]
    assert await concurrency.tokens_per_s(side, texts, level=2) == pytest.approx(expected)
    passing.cancel()
