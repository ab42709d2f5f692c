"""The greeting of a stream may be given up at any moment; a link that missed that would keep its gateway alive."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dartspec.gateway.hello import say_hello
from dartspec.gateway.rounds_call import Heard
from dartspec.v1 import verifier_pb2

HELLO = verifier_pb2.Hello(protocol=1, sampler="toy")


class Call:
    """A stream whose first message comes when the test wants."""

    def __init__(self) -> None:
        self.first: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    async def write(self, message: Any) -> None:
        assert message.hello == HELLO

    async def read(self) -> Any:
        return await self.first

    def cancel(self) -> None:
        raise AssertionError("the greeting does not end a stream")


@pytest.mark.parametrize("steps", range(5))
async def test_a_cancellation_that_comes_with_the_answer_is_kept(steps: int) -> None:
    call = Call()
    task = asyncio.create_task(say_hello(call, HELLO))
    for _ in range(5):
        await asyncio.sleep(0)
    call.first.set_result(Heard(verifier_pb2.RoundsResponse(hello=HELLO)))
    for _ in range(steps):
        await asyncio.sleep(0)
    taken = task.cancel()
    await asyncio.wait([task])
    assert task.cancelled() == taken
