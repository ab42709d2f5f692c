"""Requests in, messages out: admission, planning and the answer, free of gRPC."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing

from dartspec.gateway.ahead import ahead
from dartspec.gateway.answer import Answer
from dartspec.gateway.config import Settings
from dartspec.gateway.failover import Failover
from dartspec.gateway.fleet import Fleet
from dartspec.gateway.ledger import Ledger
from dartspec.gateway.limits import Ends
from dartspec.gateway.plan import Plan, make_plan
from dartspec.gateway.request import Request
from dartspec.gateway.search import TreeSearch
from dartspec.gateway.types import Chunk, Finish, Start
from dartspec.services.common.errors import ResourceExhausted, Unavailable

log = logging.getLogger(__name__)

READ_AHEAD = 16  # chunks that wait for a client before its work stops
RETRY_AFTER_MS = 1000


class Generation:
    """Answers requests with the verifiers of a fleet."""

    def __init__(self, fleet: Fleet, search: TreeSearch, settings: Settings) -> None:
        self._fleet = fleet
        self._search = search
        self._settings = settings
        self.open_requests = 0

    async def generate(self, request: Request, time_left: float | None) -> AsyncGenerator[Start | Chunk | Finish, None]:
        """The messages of one answer: a start, chunks, a finish. ``time_left`` in seconds, None without a deadline.

        Closing the iterator frees the request's session.
        """
        arrived = asyncio.get_running_loop().time()
        if self.open_requests >= self._settings.max_requests:
            raise ResourceExhausted(
                f"{self.open_requests} requests are open, the most that this gateway takes (--max-requests)",
                retry_after_ms=RETRY_AFTER_MS,
            )
        self.open_requests += 1
        try:
            plan = await self._plan(request)
            yield plan.start
            async with aclosing(self._answer(plan, arrived, time_left)) as messages:
                async for message in messages:
                    yield message
        finally:
            self.open_requests -= 1

    async def _plan(self, request: Request) -> Plan:
        plan = await make_plan(request, self._fleet.model(request.model), self._settings)
        # What no verifier can do is said before the answer begins.
        try:
            self._fleet.able(plan.model, plan.asking)
        except Unavailable:
            if not self._settings.queue_seconds:
                raise
        return plan

    def _answer(self, plan: Plan, arrived: float, time_left: float | None) -> AsyncGenerator[Chunk | Finish, None]:
        ledger = Ledger(arrived, mode_reason=plan.mode_reason)
        limits = self._settings.limits
        failover = Failover(limits.resume, begun=bool(plan.committed), queue=limits.queue)
        ends = Ends(arrived, time_left, limits.total)
        answer = Answer(plan, self._fleet, self._search, ledger, failover, ends)
        return ahead(answer.messages(), READ_AHEAD)
