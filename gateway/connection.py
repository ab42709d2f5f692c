"""What a Rounds stream needs besides its sessions: the greeting, its end, and what an error says."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc

from dartspec.gateway.model import CALL_SECONDS
from dartspec.services.common.channel import error_from_rpc
from dartspec.services.common.errors import FailedPrecondition, InternalError, Unavailable, error_from_code
from dartspec.v1 import verifier_pb2

PROTOCOL = 1


async def say_hello(call: Any, hello: verifier_pb2.Hello) -> None:
    """The first message each way on a new stream, by the verifier's description.

    Raises FailedPrecondition when the two sides do not fit together, Unavailable when the stream ends.
    """
    if hello.protocol != PROTOCOL:
        raise FailedPrecondition(f"speaks protocol revision {hello.protocol}, this gateway revision {PROTOCOL}")
    await call.write(verifier_pb2.RoundsRequest(hello=hello))
    first = await asyncio.wait_for(call.read(), CALL_SECONDS)
    if first is grpc.aio.EOF:
        raise Unavailable("ended the stream instead of saying hello")
    if first.hello != hello:
        raise FailedPrecondition("its hello differs from its description; was it restarted just now?")


def own_fault(failed: verifier_pb2.FailedEvent) -> bool:
    """Whether a failure says that the verifier is broken; a refusal with a time to ask again does not."""
    error = error_from_code(failed.code, failed.message)
    return isinstance(error, InternalError) or (isinstance(error, Unavailable) and not failed.retry_after_ms)


async def first_to_end(*coroutines: Any) -> None:
    """Run until one ends, stop the others, raise what it raised."""
    tasks = [asyncio.create_task(coroutine) for coroutine in coroutines]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in [task for task in tasks if task in done]:
            if task.cancelled():  # by the transport; ours must not look cancelled for it
                raise Unavailable("cancelled the stream")
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def explain(error: Exception, address: str) -> str:
    """The error in words for a log."""
    if isinstance(error, grpc.aio.AioRpcError):
        return error_from_rpc(error, address).message
    return str(error) or type(error).__name__
