"""Requests in, messages out: admission, planning and the answer, free of gRPC."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, contextmanager

from dartspec.gateway.ahead import Ahead
from dartspec.gateway.answer import Answer
from dartspec.gateway.classes import Classes
from dartspec.gateway.coalesce import coalesced
from dartspec.gateway.config import Settings
from dartspec.gateway.failover import Failover
from dartspec.gateway.fleet import Fleet
from dartspec.gateway.ledger import Ledger
from dartspec.gateway.limits import Ends
from dartspec.gateway.model import Model
from dartspec.gateway.pace import Pace
from dartspec.gateway.plan import Plan, make_plan
from dartspec.gateway.request import Request
from dartspec.gateway.request_log import logged
from dartspec.gateway.search import TreeSearch
from dartspec.gateway.stats import Stats
from dartspec.gateway.tracing import Span, Traces
from dartspec.gateway.types import Chunk, Finish, Start
from dartspec.services.common.errors import ResourceExhausted, Unavailable

READ_AHEAD = 16  # chunks that wait for a client before its work stops
RETRY_AFTER_MS = 1000


class Generation:
    """Answers requests with the verifiers of a fleet."""

    def __init__(self, fleet: Fleet, search: TreeSearch, settings: Settings, traces: Traces | None = None) -> None:
        self._fleet = fleet
        self._traces = traces or Traces()
        self._search = search
        self._settings = settings
        self.open_requests = 0
        self.stats = Stats(fleet.control)
        self._open_of: Counter[str] = Counter()  # by client
        self._classes = Classes()
        self.pace = Pace()

    def model(self, name: str) -> Model:
        """The model of that name; see `Fleet.model` for what it raises."""
        return self._fleet.model(name)

    async def generate(
        self, request: Request, time_left: float | None, client: str = ""
    ) -> AsyncGenerator[Start | Chunk | Finish, None]:
        """The messages of one answer: a start, chunks, a finish. ``time_left`` in seconds, None without a deadline.

        ``client`` is the name that belongs to the caller's API key, empty where none is wanted. Closing the iterator
        frees the request's session.
        """
        ledger = Ledger(asyncio.get_running_loop().time())
        with (
            self.stats.request(ledger),
            self._traces.request(request.traceparent) as span,
            logged(request.request_id, client) as line,
            self._admitted(client),
        ):
            plan = await self._plan(request)
            ledger.mode_reason = plan.mode_reason
            line.began(plan.start)
            span.set({"request_id": plan.start.request_id, "model": plan.start.model, "mode": plan.mode.name.lower()})
            yield plan.start
            async with aclosing(self._answer(plan, ledger, time_left, span)) as messages:
                async for message in messages:
                    if isinstance(message, Finish):
                        self.stats.finished(message)
                        line.ended(message)
                        span.set(line.facts)
                    yield message

    @contextmanager
    def _admitted(self, client: str) -> Iterator[None]:
        """Count a request while it is open. Raises ResourceExhausted when there are too many."""
        if self.open_requests >= self._settings.max_requests:
            raise ResourceExhausted(
                f"{self.open_requests} requests are open, the most that this gateway takes (--max-requests)",
                retry_after_ms=RETRY_AFTER_MS,
            )
        most = self._settings.max_requests_per_key
        if client and most and self._open_of[client] >= most:
            raise ResourceExhausted(
                f"{self._open_of[client]} requests of this API key are open, the most that it may have at once",
                retry_after_ms=RETRY_AFTER_MS,
            )
        self.open_requests += 1
        self._open_of[client] += 1
        try:
            yield
        finally:
            self.open_requests -= 1
            self._open_of[client] -= 1
            if not self._open_of[client]:
                del self._open_of[client]

    async def _plan(self, request: Request) -> Plan:
        plan = await make_plan(request, self._fleet.model(request.model), self._settings, self._classes)
        # What no verifier can do is said before the answer begins.
        try:
            self._fleet.able(plan.model, plan.asking)
        except Unavailable:
            if not self._settings.queue_seconds:
                raise
        return plan

    def _answer(
        self, plan: Plan, ledger: Ledger, time_left: float | None, span: Span
    ) -> AsyncGenerator[Chunk | Finish, None]:
        limits = self._settings.limits
        failover = Failover(limits.resume, begun=bool(plan.committed), queue=limits.queue)
        ends = Ends(ledger.arrived, time_left, limits.total)
        answer = Answer(plan, self._fleet, self._search, ledger, failover, ends, span)
        return coalesced(Ahead(answer.messages(), READ_AHEAD), lambda: self.pace.hold, self._search.settled)
