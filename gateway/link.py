"""The one Rounds stream to a verifier, which carries all sessions between it and this gateway."""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
from typing import Any

import grpc

from dartspec.gateway.convert import kv_share
from dartspec.gateway.model import CALL_SECONDS, Model, ModelSource
from dartspec.gateway.router import Load
from dartspec.gateway.session import Session
from dartspec.gateway.types import Opening
from dartspec.services.common.channel import error_from_rpc, open_channel
from dartspec.services.common.errors import DartspecError, FailedPrecondition, Unavailable
from dartspec.v1 import common_pb2, verifier_pb2, verifier_pb2_grpc

log = logging.getLogger(__name__)

PROTOCOL = 1
FIRST_RETRY_SECONDS = 0.1
LAST_RETRY_SECONDS = 2.0


class VerifierLink:
    """Connects, and connects again whenever the stream is lost; the sessions of a lost stream fail with Unavailable.

    model: as last described, also while the verifier is down. up: sessions can be opened. retiring: the registry says
    that it drains, or no longer names it. tried: set once the first attempt to connect has ended. ``stall_seconds``: a
    verifier that owes rounds and is silent for longer is lost.
    """

    def __init__(self, address: str, models: ModelSource, *, stall_seconds: float) -> None:
        self.address = address
        self.model: Model | None = None
        self.up = False
        self.retiring = False
        self.tried = asyncio.Event()
        self._models = models
        self._stall_seconds = stall_seconds
        self._report = common_pb2.LoadReport()
        self._announced: common_pb2.LoadReport | None = None
        self._sessions: dict[int, Session] = {}
        self._ids = itertools.count(1)
        self._outgoing: list[verifier_pb2.Command] = []
        self._wake = asyncio.Event()
        self._opened_since_report = 0
        self._heard_at = 0.0

    @property
    def sessions(self) -> int:
        """Sessions that are open on the stream."""
        return len(self._sessions)

    @property
    def draining(self) -> bool:
        """Its sessions go on to their end, no new one is wanted: as the registry or the verifier itself says."""
        return self.retiring or self._report.draining

    def load(self) -> Load:
        """For the router."""
        return Load(self._report.sessions, self.sessions, self._opened_since_report, kv_share(self._report))

    def announced(self, load: common_pb2.LoadReport) -> None:
        """Take the load of an announcement; a stream that is in use knows better."""
        if load is not self._announced and not self._sessions:
            self._report = load
            self._opened_since_report = 0
        self._announced = load

    def open(self, opening: Opening) -> Session:
        """Begin a session. Raises Unavailable when there is no stream."""
        if not self.up:
            raise Unavailable(f"verifier {self.address} is not connected")
        session = Session(next(self._ids), opening, self._send, self._end)
        self._sessions[session.id] = session
        self._opened_since_report += 1
        return session

    async def run(self) -> None:
        """Keep the stream alive until cancelled."""
        pause = FIRST_RETRY_SECONDS
        while True:
            try:
                await self._serve()
            except (DartspecError, grpc.aio.AioRpcError, TimeoutError, asyncio.InvalidStateError) as error:
                reason = _explain(error, self.address)
            except Exception as error:  # a fault of ours must not end the link for good
                log.exception("verifier %s: unexpected error", self.address)
                reason = str(error)
            finally:
                was_up, self.up = self.up, False
                self.tried.set()
                self._fail_sessions(Unavailable(f"the stream to verifier {self.address} is lost"))
            if was_up:
                pause = FIRST_RETRY_SECONDS
            log.log(logging.WARNING if was_up else logging.INFO, "verifier %s: %s", self.address, reason)
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(2 * pause, LAST_RETRY_SECONDS)

    async def _serve(self) -> None:
        async with open_channel(self.address) as channel:
            stub = verifier_pb2_grpc.VerifierServiceStub(channel)
            self.model, described = await self._models.fetch(stub)
            call = stub.Rounds()
            try:
                await self._say_hello(call, described.hello)
                self._report = described.load
                self._connected()
                await _first_to_end(self._read(call), self._write(call), self._watch())
            finally:
                call.cancel()

    async def _say_hello(self, call: Any, hello: verifier_pb2.Hello) -> None:
        if hello.protocol != PROTOCOL:
            raise FailedPrecondition(f"speaks protocol revision {hello.protocol}, this gateway revision {PROTOCOL}")
        await call.write(verifier_pb2.RoundsRequest(hello=hello))
        first = await asyncio.wait_for(call.read(), CALL_SECONDS)
        if first is grpc.aio.EOF:
            raise Unavailable("ended the stream instead of saying hello")
        if first.hello != hello:
            raise FailedPrecondition("its hello differs from its description; was it restarted just now?")

    def _connected(self) -> None:
        self._outgoing.clear()
        self._wake.clear()
        self._opened_since_report = 0
        self._heard_at = _now()
        self.up = True
        self.tried.set()
        log.info("verifier %s serves %s", self.address, self.model.name if self.model else "")

    async def _read(self, call: Any) -> None:
        while (response := await call.read()) is not grpc.aio.EOF:
            self._heard_at = _now()
            if response.HasField("load"):
                self._report = response.load
                self._opened_since_report = 0
            for event in response.events:
                session = self._sessions.get(event.session)
                if session is not None:
                    session.deliver(event)
        raise Unavailable("ended the stream")

    async def _write(self, call: Any) -> None:
        # Sessions that were woken by one response run before this does, so their commands leave in one message.
        while True:
            await self._wake.wait()
            self._wake.clear()
            commands, self._outgoing = self._outgoing, []
            if commands:
                await call.write(verifier_pb2.RoundsRequest(commands=commands))

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self._stall_seconds / 8)
            now = _now()
            for session in self._sessions.values():
                silent = now - max(session.asked_at, self._heard_at)
                if session.credit and silent > self._stall_seconds:
                    raise Unavailable(f"owes rounds and is silent for {silent:.0f} s")

    def _send(self, command: verifier_pb2.Command) -> None:
        self._outgoing.append(command)
        self._wake.set()

    def _end(self, session: Session, tell_verifier: bool) -> None:
        self._sessions.pop(session.id, None)
        if not tell_verifier:
            return
        unsent = [command for command in self._outgoing if command.session == session.id]
        if unsent:
            self._outgoing = [command for command in self._outgoing if command.session != session.id]
        if not any(command.HasField("open") for command in unsent):
            self._send(verifier_pb2.Command(session=session.id, close=verifier_pb2.CloseCommand()))

    def _fail_sessions(self, error: DartspecError) -> None:
        for session in list(self._sessions.values()):
            session.fail(error)
        self._outgoing.clear()


async def _first_to_end(*coroutines: Any) -> None:
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


def _explain(error: Exception, address: str) -> str:
    if isinstance(error, grpc.aio.AioRpcError):
        return error_from_rpc(error, address).message
    return str(error) or type(error).__name__


def _now() -> float:
    return asyncio.get_running_loop().time()
