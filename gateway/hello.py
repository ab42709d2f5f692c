"""The greeting at the beginning of a Rounds stream."""

from __future__ import annotations

import asyncio

from dartspec.gateway.model import CALL_SECONDS
from dartspec.gateway.rounds_call import Heard, RoundsCall
from dartspec.services.common.errors import FailedPrecondition, Unavailable
from dartspec.v1 import verifier_pb2

PROTOCOL = 1


async def say_hello(call: RoundsCall, hello: verifier_pb2.Hello) -> None:
    """The first message each way on a new stream, by the verifier's description.

    Raises FailedPrecondition when the two sides do not fit together, Unavailable when the stream ends.
    """
    if hello.protocol != PROTOCOL:
        raise FailedPrecondition(f"speaks protocol revision {hello.protocol}, this gateway revision {PROTOCOL}")
    await call.write(verifier_pb2.RoundsRequest(hello=hello))
    async with asyncio.timeout(CALL_SECONDS):  # before Python 3.12 wait_for swallows a cancellation at the wrong moment
        first = await call.read()
    if not isinstance(first, Heard):
        raise Unavailable("ended the stream instead of saying hello")
    if first.response.hello != hello:
        raise FailedPrecondition("its hello differs from its description; was it restarted just now?")
