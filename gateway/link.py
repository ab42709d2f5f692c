"""The one Rounds stream to a verifier, which carries all sessions between it and this gateway."""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import grpc

from dartspec.gateway.breaker import Breaker, BreakerState
from dartspec.gateway.drift import AcceptanceDrift
from dartspec.gateway.faults import explain, own_fault
from dartspec.gateway.hello import say_hello
from dartspec.gateway.limits import Limits, Stalled
from dartspec.gateway.model import Model, ModelSource
from dartspec.gateway.replica_load import ReplicaLoad
from dartspec.gateway.rounds_call import Answered, DirectCall, Heard, RoundsCall
from dartspec.gateway.router import Load
from dartspec.gateway.session import Session
from dartspec.gateway.steering import Steering
from dartspec.gateway.tasks import first_to_end
from dartspec.gateway.types import Mode, Opening
from dartspec.services.common.channel import open_channel
from dartspec.services.common.errors import DartspecError, Unavailable
from dartspec.services.common.tls import ClientTls
from dartspec.v1 import common_pb2, verifier_pb2, verifier_pb2_grpc

if TYPE_CHECKING:
    from dartspec.gateway.relay import Relay, RelayedCall

log = logging.getLogger(__name__)

FIRST_RETRY_SECONDS = 0.1
LAST_RETRY_SECONDS = 2.0


@dataclass
class _Open:
    """A session on the stream. first_n: its n when it was opened. heard_at: when it last got tokens; None before."""

    session: Session
    mode: Mode
    first_n: int
    heard_at: float | None = None


class VerifierLink:
    """Connects, and connects again whenever the stream is lost; the sessions of a lost stream fail with Unavailable.

    model: as last described, also while the verifier is down. up: there is a stream. retiring: the registry says that
    it drains, or no longer names it. held: this gateway was told to drain it. tried: set once the first attempt to
    connect has ended. opened: sessions by mode since the start. ``answered`` gets the number of tokens of each session
    that ends. ``tls``: for the way there. ``relay``: carries the stream in place of this process's own gRPC.
    """

    def __init__(
        self,
        address: str,
        models: ModelSource,
        limits: Limits,
        answered: Callable[[int], None] = lambda tokens: None,
        steering: Steering | None = None,
        tls: ClientTls | None = None,
        relay: Relay | None = None,
    ) -> None:
        self.address = address
        self.model: Model | None = None
        self.max_sessions = 0
        self.up = False
        self.retiring = False
        self.held = False
        self.tried = asyncio.Event()
        self.breaker = Breaker()
        self.opened: Counter[Mode] = Counter()
        self.drift = AcceptanceDrift()
        self._expected_accepted = 0.0
        self.steering = steering or Steering(enabled=False)
        self._models = models
        self._limits = limits
        self._answered = answered
        self._tls = tls
        self._relay = relay
        self._relayed: RelayedCall | None = None
        self._load = ReplicaLoad()
        self._announced: common_pb2.LoadReport | None = None
        self._sessions: dict[int, _Open] = {}
        self._ids = itertools.count(1)
        self._outgoing: list[verifier_pb2.Command] = []
        self._wake = asyncio.Event()
        self._heard_at = 0.0
        self._progress_at = 0.0

    @property
    def sessions(self) -> int:
        """Sessions that are open on the stream."""
        return len(self._sessions)

    @property
    def open_by_mode(self) -> Counter[Mode]:
        """Sessions that are open on the stream, by mode."""
        return Counter(one.mode for one in self._sessions.values())

    @property
    def draining(self) -> bool:
        """Its sessions go on to their end, no new one is wanted: as an operator, the registry or itself says."""
        return self.held or self.retiring or self._load.report.draining

    @property
    def report(self) -> common_pb2.LoadReport:
        """The last load report."""
        return self._load.report

    def breaker_state(self) -> BreakerState:
        """Of its breaker, now."""
        return self.breaker.state(_now())

    def allowed(self) -> bool:
        """Whether its breaker lets a new session through."""
        return self.breaker.allows(_now())

    def load(self) -> Load:
        """For the router."""
        return self._load.load(self.sessions)

    def announced(self, load: common_pb2.LoadReport) -> None:
        """Take the load of an announcement; a stream that is in use knows better."""
        if load is not self._announced and not self._sessions:
            self._load.reported(load, _now())
        self._announced = load

    def open(self, opening: Opening) -> Session:
        """Begin a session. Raises Unavailable when there is no stream."""
        if not self.up:
            raise Unavailable(f"verifier {self.address} is not connected")
        self._guide()
        session_id = next(self._ids)
        if self._relayed is not None:
            self._relayed.follow(session_id, opening.token_ids)
        session = Session(session_id, opening, self._send, self._end, lambda offers: self._allow(session_id, offers))
        self._sessions[session_id] = _Open(session, opening.mode, session.n)
        self.opened[opening.mode] += 1
        self._load.sent(opening)
        self.steering.opened(session.id, opening)
        self.breaker.began(session, _now())
        return session

    def speculates(self, session: Session) -> bool:
        """Whether an auto session's drafting is left to the verifier now."""
        return self.steering.speculates(session.id, _now())

    async def run(self) -> None:
        """Keep the stream alive until cancelled."""
        pause = FIRST_RETRY_SECONDS
        while True:
            stalled = False
            try:
                await self._serve()
            except Stalled as error:
                reason, stalled = error.message, True
            except (DartspecError, grpc.aio.AioRpcError, TimeoutError, asyncio.InvalidStateError) as error:
                reason = explain(error, self.address)
            except Exception as error:  # a fault of ours must not end the link for good
                log.exception("verifier %s: unexpected error", self.address)
                reason = str(error)
            finally:
                was_up, self.up = self.up, False
                self.tried.set()
                self._lose_sessions(stalled)
            if was_up:
                pause = FIRST_RETRY_SECONDS
            log.log(logging.WARNING if was_up else logging.INFO, "verifier %s: %s", self.address, reason)
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(2 * pause, LAST_RETRY_SECONDS)

    async def _serve(self) -> None:
        async with open_channel(self.address, self._tls) as channel:
            stub = verifier_pb2_grpc.VerifierServiceStub(channel)
            self.model, described = await self._models.fetch(stub)
            self._relayed = self._relay.open(self.address) if self._relay is not None else None
            call = self._relayed or DirectCall(stub.Rounds())
            try:
                await say_hello(call, described.hello)
                self.max_sessions = described.max_sessions
                self._expected_accepted = described.expected_accepted_per_round
                self.steering.forget()
                self._load.reported(described.load, _now())
                self._connected()
                await first_to_end(self._read(call), self._write(call), self._watch())
            finally:
                call.cancel()

    def _connected(self) -> None:
        self._guide()
        self._outgoing.clear()
        self._wake.clear()
        self._heard_at = self._progress_at = _now()
        self.up = True
        self.tried.set()
        log.info("verifier %s serves %s", self.address, self.model.name if self.model else "")

    async def _read(self, call: RoundsCall) -> None:
        while (came := await call.read()) is not None:
            match came:
                case Heard(response, answering):
                    self._hear(response, answering)
                case Answered(sessions, search_ms):
                    for one in filter(None, map(self._sessions.get, sessions)):
                        one.session.offer_answered(search_ms)
        raise Unavailable("ended the stream")

    def _hear(self, response: verifier_pb2.RoundsResponse, answering: frozenset[int]) -> None:
        self._heard_at = _now()
        if response.HasField("load"):
            self._load.reported(response.load, _now())
        rounds = []
        for event in response.events:
            one = self._sessions.get(event.session)
            if one is not None:
                if (round := one.session.deliver(event, answering=event.session in answering)) is not None:
                    rounds.append((event.session, round))
                self._judge(one, event)
        self.steering.heard(rounds, response.load, self._heard_at)
        self._watch_drift(response.load)
        self._guide()

    def _guide(self) -> None:
        if self._relayed is not None and self.model is not None:
            self._relayed.guide(self.model)

    def _watch_drift(self, load: common_pb2.LoadReport) -> None:
        if self.drift.observe(self._expected_accepted, load.accepted_per_round, load.rounds):
            how = "fewer draft tokens than" if self.drift.drifting else "again about as many draft tokens as"
            log.warning(
                "verifier %s: rounds accept %s the head's card says: %.0f%%", self.address, how, 1e2 * self.drift.ratio
            )

    def _judge(self, one: _Open, event: verifier_pb2.Event) -> None:
        """Tell the breaker what an event says about the verifier, once its session has taken it."""
        if event.HasField("failed"):
            if own_fault(event.failed):
                self.breaker.failed(self._heard_at)
        elif one.session.id in self._sessions or event.round.finish_reason:
            one.heard_at = self._progress_at = self._heard_at
            self.breaker.succeeded()
        else:  # it broke the protocol, and the session ended itself
            self.breaker.failed(self._heard_at)

    async def _write(self, call: RoundsCall) -> None:
        # Sessions that were woken by one response run before this does, so their commands leave in one message.
        while True:
            await self._wake.wait()
            self._wake.clear()
            commands, self._outgoing = self._outgoing, []
            if commands:
                await call.write(verifier_pb2.RoundsRequest(commands=commands))

    async def _watch(self) -> None:
        """Keep the time limits of sessions that are owed rounds, and give up a stream that is silent for too long."""
        while True:
            await asyncio.sleep(self._limits.tick)
            now = _now()
            for one in [one for one in self._sessions.values() if one.session.credit]:
                silent = now - max(one.session.asked_at, self._heard_at)
                if silent > self._limits.stall:
                    raise Stalled(f"owes rounds and is silent for {silent:.0f} s (--stall-seconds)")
                waits_since = max(one.session.asked_at, one.heard_at or 0.0)
                problem = self._limits.exceeded(begun=one.heard_at is not None, waited=now - waits_since)
                if problem:
                    self.breaker.failed(now, stalled=self._progress_at <= waits_since)
                    one.session.fail(Stalled(f"verifier {self.address}: {problem}"))
                    self._tell_closed(one.session)

    def _send(self, command: verifier_pb2.Command) -> None:
        self._outgoing.append(command)
        self._wake.set()

    def _allow(self, session_id: int, offers: int) -> None:
        if self._relayed is not None:
            self._relayed.allow(session_id, offers)

    def _end(self, session: Session, tell_verifier: bool) -> None:
        one = self._sessions.pop(session.id, None)
        if self._relayed is not None:
            self._relayed.forget(session.id)
        self.breaker.ended(session)
        self.steering.closed(session.id)
        if one is not None and session.n > one.first_n:
            self._answered(session.n - one.first_n)
        if tell_verifier:
            self._tell_closed(session)

    def _tell_closed(self, session: Session) -> None:
        unsent = [command for command in self._outgoing if command.session == session.id]
        if unsent:
            self._outgoing = [command for command in self._outgoing if command.session != session.id]
        if not any(command.HasField("open") for command in unsent):
            self._send(verifier_pb2.Command(session=session.id, close=verifier_pb2.CloseCommand()))

    def _lose_sessions(self, stalled: bool) -> None:
        if any(one.session.credit for one in self._sessions.values()):
            self.breaker.failed(_now(), stalled=stalled)
        for one in list(self._sessions.values()):
            one.session.fail(Unavailable(f"the stream to verifier {self.address} is lost"))
        self._outgoing.clear()


def _now() -> float:
    return asyncio.get_running_loop().time()
