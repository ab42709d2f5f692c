"""A replica's engine: continuous batching by the clock. A pass holds what is ready and takes what the table says."""

from __future__ import annotations

import asyncio
import contextlib
import math
from dataclasses import dataclass, field

from bench.synthetic_verifier.model import Acceptance, Cost
from bench.synthetic_verifier.session import SyntheticSession
from dartspec.services.common.errors import InvalidArgument, ResourceExhausted
from dartspec.v1 import common_pb2, verifier_pb2

RATE_SECONDS = 10.0  # as verifiers measure their speed over
RETRY_AFTER_MS = 200


@dataclass(frozen=True)
class Behaviour:
    """How a replica behaves. Times in milliseconds at speed 1.

    straggler_ms: how long a pass waits for sessions that are about to verify. judgement: whether auto sessions draft
    only where the cost table says that it pays, or always. prompt_row_ms: of reading one token of a prompt.
    """

    cost: Cost
    draft_ms: float = 1.0
    prompt_row_ms: float = 0.0
    acceptance: Acceptance = field(default_factory=Acceptance)
    draft_length: int = 8
    context_length: int = 32_768
    max_sessions: int = 4096
    straggler_ms: float = 2.0
    judgement: bool = True
    speed: float = 1.0


@dataclass(eq=False)
class Stream:
    """One gateway's Rounds stream: its sessions by id, and messages that wait to be sent; None only wakes."""

    sessions: dict[int, SyntheticSession] = field(default_factory=dict)
    outgoing: asyncio.Queue[verifier_pb2.RoundsResponse | None] = field(default_factory=lambda: asyncio.Queue(64))
    failed: list[verifier_pb2.Event] = field(default_factory=list)

    def end(self) -> None:
        """Wake whoever sends the messages; where many wait, nobody sleeps."""
        with contextlib.suppress(asyncio.QueueFull):
            self.outgoing.put_nowait(None)


class SyntheticEngine:
    """Runs the sessions of all streams of a replica."""

    def __init__(self, behaviour: Behaviour) -> None:
        self.behaviour = behaviour
        self.streams: set[Stream] = set()
        self.draining = False
        self.passes = 0
        self._wake = asyncio.Event()
        self._committed = self._rounds = self._accepted = 0
        self._verified_at = [0] * behaviour.draft_length
        self._accepted_at = [0] * behaviour.draft_length
        self._rate = self._pass_ms = self._draft_ms = self._per_round = 0.0

    def open(self, stream: Stream, session_id: int, command: verifier_pb2.Command, prompt: str, now: float) -> None:
        """Start a session, or refuse it when the replica is full."""
        behaviour = self.behaviour
        if self._sessions() >= behaviour.max_sessions or self.draining:
            error = ResourceExhausted("full", retry_after_ms=RETRY_AFTER_MS)
            failed = verifier_pb2.FailedEvent(code=error.number, message=error.message, retry_after_ms=RETRY_AFTER_MS)
            stream.failed.append(verifier_pb2.Event(session=session_id, failed=failed))
        else:
            rate = behaviour.acceptance.rate(prompt)
            session = SyntheticSession(command.open, rate, behaviour.draft_length, behaviour.context_length)
            stream.sessions[session_id] = session
            session.take(command, now)
        self._wake.set()

    def take(self, stream: Stream, command: verifier_pb2.Command, now: float) -> None:
        """Any other command of a session; those for sessions that ended are dropped."""
        session = stream.sessions.get(command.session)
        if session is None:
            return
        if command.HasField("close"):
            del stream.sessions[command.session]
        else:
            session.take(command, now)
        self._wake.set()

    async def run(self) -> None:
        """Pass after pass, until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            self._wake.clear()
            if not await self._ready():
                await self._wake.wait()
                continue
            begin = loop.time()
            batch = [(s, i, one) for s in self.streams for i, one in s.sessions.items() if one.work]
            decoding = [one.rows() for _, _, one in batch if one.begun]
            reading = sum(one.unread for _, _, one in batch)
            behaviour = self.behaviour
            verify_ms = behaviour.cost.pass_ms(max(sum(decoding), 1)) + behaviour.prompt_row_ms * reading
            verify_ms /= behaviour.speed
            await asyncio.sleep(verify_ms / 1e3)
            events, drafting = self._pass(batch, begin)
            # Measured: sleep is late, and walking takes its time, as in a real verifier's pass.
            verified = loop.time()
            for _, event in events:
                if event.HasField("round"):
                    event.round.timings.verify_ms = 1e3 * (verified - begin)
            if drafting:
                await asyncio.sleep(behaviour.draft_ms / behaviour.speed / 1e3)
                for session, round in drafting:
                    round.proposals.CopyFrom(session.propose())
                draft_ms = 1e3 * (loop.time() - verified)
                self._draft_ms += (draft_ms - self._draft_ms) * (0.1 if self._draft_ms else 1.0)
                for _, round in drafting:
                    round.timings.draft_ms = draft_ms
            self._measure(loop.time() - begin, verify_ms, events)
            await self._send(events)

    async def _ready(self) -> bool:
        """Whether a session has work; gives those that are about to verify a moment to come too."""
        deadline = asyncio.get_running_loop().time() + self.behaviour.straggler_ms / 1e3
        while True:
            sessions = [one for stream in self.streams for one in stream.sessions.values()]
            failed = any(stream.failed for stream in self.streams)
            late = any(one.proposed and not one.work for one in sessions)
            left = deadline - asyncio.get_running_loop().time()
            if not late or left <= 0:
                return failed or any(one.work for one in sessions)
            self._wake.clear()
            try:
                await asyncio.wait_for(self._wake.wait(), left)
            except TimeoutError:
                continue

    def _pass(
        self, batch: list[tuple[Stream, int, SyntheticSession]], begin: float
    ) -> tuple[list[tuple[Stream, verifier_pb2.Event]], list[tuple[SyntheticSession, verifier_pb2.RoundEvent]]]:
        """What a pass that began then commits, and the sessions to draft for with their rounds."""
        self.passes += 1
        events, drafting = [], []
        running = self._sessions()
        for stream, session_id, session in batch:
            if stream.sessions.get(session_id) is not session:
                continue  # closed while the pass ran
            waited = begin - session.work[0].at
            try:
                round, wanted = session.run()
            except InvalidArgument as error:
                failed = verifier_pb2.FailedEvent(code=error.number, field=error.field, message=error.message)
                events.append((stream, verifier_pb2.Event(session=session_id, failed=failed)))
                del stream.sessions[session_id]
                continue
            round.timings.wait_ms = 1e3 * max(waited, 0.0)
            if round.nodes_verified:
                self._learn(round)
            if round.finish_reason:
                del stream.sessions[session_id]
            event = verifier_pb2.Event(session=session_id, round=round)
            if wanted and self._drafts(session, event.round, running):
                drafting.append((session, event.round))
            if session.work:  # credit that is left waits from now on
                session.work[0].at = asyncio.get_running_loop().time()
            events.append((stream, event))
        return events, drafting

    def _drafts(self, session: SyntheticSession, round: verifier_pb2.RoundEvent, running: int) -> bool:
        """Whether proposals come with the round; else it says why not."""
        if round.finish_reason:
            round.no_draft_reason = verifier_pb2.NO_DRAFT_REASON_FINISHED
        elif not session.draft_length:
            round.no_draft_reason = verifier_pb2.NO_DRAFT_REASON_NO_HEAD
        elif session.plain_only:
            round.no_draft_reason = verifier_pb2.NO_DRAFT_REASON_PLAIN_ONLY
        elif session.end - session.n <= 2:
            round.no_draft_reason = verifier_pb2.NO_DRAFT_REASON_NEAR_LIMIT
        elif not session.always_draft and self.behaviour.judgement and not self._pays(session, running):
            session.steps = 0
            round.no_draft_reason = verifier_pb2.NO_DRAFT_REASON_DOES_NOT_PAY
        else:
            return True
        return False

    def _pays(self, session: SyntheticSession, running: int) -> bool:
        """As if all sessions were like this one: committed tokens per second of a round against a plain step."""
        cost, behaviour = self.behaviour.cost, self.behaviour
        round_ms = cost.pass_ms(running * (1 + session.draft_length)) + behaviour.draft_ms
        return (1.0 + session.accepted) / round_ms > 1.0 / cost.pass_ms(running)

    def _learn(self, round: verifier_pb2.RoundEvent) -> None:
        self._rounds += 1
        self._accepted += round.accepted
        self._per_round += (round.accepted - self._per_round) * (0.02 if self._rounds > 1 else 1.0)
        for depth in range(self.behaviour.draft_length):
            self._verified_at[depth] += 1
            self._accepted_at[depth] += depth < round.accepted

    def _measure(self, seconds: float, verify_ms: float, events: list[tuple[Stream, verifier_pb2.Event]]) -> None:
        tokens = sum(len(event.round.token_ids) for _, event in events)
        self._committed += tokens
        share = 1.0 - math.exp(-seconds / RATE_SECONDS) if self._rate else 1.0
        self._rate += (tokens / seconds - self._rate) * share
        self._pass_ms += (verify_ms - self._pass_ms) * (0.1 if self._pass_ms else 1.0)

    async def _send(self, events: list[tuple[Stream, verifier_pb2.Event]]) -> None:
        load = self.load()
        by_stream: dict[Stream, list[verifier_pb2.Event]] = {}
        for stream in self.streams:
            if stream.failed:
                by_stream[stream], stream.failed = stream.failed, []
        for stream, event in events:
            by_stream.setdefault(stream, []).append(event)
        for stream, its in by_stream.items():
            if stream in self.streams:
                await stream.outgoing.put(verifier_pb2.RoundsResponse(events=its, load=load))

    def _sessions(self) -> int:
        return sum(len(stream.sessions) for stream in self.streams)

    def load(self) -> common_pb2.LoadReport:
        """As a verifier reports it."""
        sessions = [one for stream in self.streams for one in stream.sessions.values()]
        unread = [one.unread for one in sessions if not one.begun]
        return common_pb2.LoadReport(
            sessions=len(sessions),
            queued=sum(bool(one.work) for one in sessions),
            kv_used=sum(one.kv for one in sessions),
            kv_capacity=self.behaviour.max_sessions * 4096,
            committed_tokens=self._committed,
            rounds=self._rounds,
            accepted_tokens=self._accepted,
            waiting_sessions=len(unread),
            running_sessions=len(sessions) - len(unread),
            prompt_tokens_left=sum(unread),
            committed_tokens_per_second=self._rate,
            pass_ms=self._pass_ms,
            draft_ms=self._draft_ms,
            accepted_per_round=self._per_round,
            verified_per_depth=self._verified_at,
            accepted_per_depth=self._accepted_at,
            draining=self.draining,
        )
