"""One answer from its first token to its last, on as many verifiers as it takes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing

from dartspec.gateway.failover import Failover
from dartspec.gateway.fleet import Fleet
from dartspec.gateway.ledger import Ledger
from dartspec.gateway.limits import Ends
from dartspec.gateway.link import VerifierLink
from dartspec.gateway.plan import Plan
from dartspec.gateway.rounds import rounds
from dartspec.gateway.search import TreeSearch
from dartspec.gateway.stream import Piece
from dartspec.gateway.tracing import Span
from dartspec.gateway.types import Chunk, Finish, FinishReason, Mode, Opening, Round, RoundKind
from dartspec.services.common.errors import DartspecError, DeadlineExceeded, Unavailable

log = logging.getLogger(__name__)

MAX_TIME_LEFT_MS = 2**32 - 1  # what the field holds; 49 days


class Answer:
    """Makes the chunks and the finish of a planned request, on the loop's clock."""

    def __init__(
        self,
        plan: Plan,
        fleet: Fleet,
        search: TreeSearch,
        ledger: Ledger,
        failover: Failover,
        ends: Ends,
        span: Span,
    ) -> None:
        self._plan = plan
        self._span = span
        self._fleet = fleet
        self._search = search
        self._ledger = ledger
        self._failover = failover
        self._ends = ends
        self._committed = list(plan.committed)

    async def messages(self) -> AsyncGenerator[Chunk | Finish, None]:
        """Chunks in order, each token once, then the finish."""
        if self._plan.ended:
            tail = self._plan.stream.push((), last=not self._plan.ended_stop)
            if tail.text:
                yield Chunk(len(self._committed), (), (), tail.text)
            yield self._finish(self._plan.ended, self._plan.ended_stop)
            return
        async with aclosing(self._rounds()) as all_rounds:
            async for round in all_rounds:
                self._account(round)
                piece = self._plan.stream.push(round.token_ids, last=bool(round.finish_reason))
                chunk = _delivered(round, piece, first_index=len(self._committed))
                self._committed += chunk.token_ids
                self._ledger.delivered(round, len(chunk.token_ids))
                reason = FinishReason.STOP if piece.stop else round.finish_reason
                if reason:
                    await all_rounds.aclose()  # the verifier is free before the client has read the rest
                yield chunk
                if reason:
                    yield self._finish(reason, piece.stop)
                    return

    async def _rounds(self) -> AsyncGenerator[Round, None]:
        """Rounds on one verifier after the other; the committed tokens carry the answer across."""
        while True:
            link = await self._choose()
            try:
                async with aclosing(self._rounds_on(link)) as session_rounds:
                    async for round in session_rounds:
                        yield round
                        self._failover.progressed()
                        self._ends.check(_now())
                return
            except DartspecError as error:
                request_id = self._plan.start.request_id
                facts = {"request_id": request_id, "verifier": link.address, "tokens": len(self._committed)}
                log.info("request %s leaves verifier %s: %s", request_id, link.address, error.message, extra=facts)
                if isinstance(error, DeadlineExceeded):
                    raise self._ends.over() from error  # the verifier knows one end only, not whose it is
                self._failover.failed(link.address, error, _now())
                self._ledger.left_verifier()

    async def _rounds_on(self, link: VerifierLink) -> AsyncGenerator[Round, None]:
        opening = self._opening()
        with self._span.attempt(link.address, len(self._committed)):
            session = link.open(opening)
            # A verifier keeps the deadline too, but one that hangs keeps nothing.
            left = self._ends.time_left(_now())
            over = (
                None if left is None else asyncio.get_running_loop().call_later(left, session.expire, self._ends.over())
            )
            try:
                one = rounds(
                    session, opening, self._plan.model, self._search, self._ledger, lambda: link.speculates(session)
                )
                async with aclosing(one) as session_rounds:
                    async for round in session_rounds:
                        yield round
            finally:
                if over is not None:
                    over.cancel()
                session.close()

    async def _choose(self) -> VerifierLink:
        while True:
            self._ends.check(_now())
            try:
                return self._fleet.choose(self._plan.model, self._plan.asking, self._failover.avoid)
            except Unavailable as error:
                pause = self._failover.none_left(error, _now())
            left = self._ends.time_left(_now())
            await asyncio.sleep(pause if left is None else min(pause, left))

    def _opening(self) -> Opening:
        start = self._plan.start
        return Opening(
            token_ids=(*start.prompt_token_ids, *self._committed),
            prompt_len=len(start.prompt_token_ids),
            sampling=start.sampling,
            seed=start.seed,
            mode=self._plan.mode,
            time_left_ms=self._time_left_ms(),
            request_id=start.request_id,
            request_class=self._plan.request_class,
        )

    def _time_left_ms(self) -> int:
        left = self._ends.time_left(_now())
        return 0 if left is None else min(max(1, int(1e3 * left)), MAX_TIME_LEFT_MS)

    def _account(self, round: Round) -> None:
        match round.kind:
            case RoundKind.OPEN:
                self._ledger.opened(round, _now())
            case RoundKind.DECODE:
                self._ledger.decoded(round, _now())
            case RoundKind.VERIFY:
                self._ledger.verified(round, _now())

    def _finish(self, reason: FinishReason, stop: str) -> Finish:
        self._ledger.ended(_now())
        return Finish(
            mode_used=self._mode_used(),
            reason=reason,
            stop=stop,
            prompt_tokens=len(self._plan.start.prompt_token_ids),
            completion_tokens=len(self._committed),
            ledger=self._ledger,
        )

    def _mode_used(self) -> Mode:
        if not self._ledger.dart_rounds:
            return Mode.PLAIN if self._ledger.plain_steps else self._plan.mode
        # Where only one token is left before the limit, DART has nothing to draft: that plain step is part of it.
        both = self._plan.mode is Mode.AUTO and self._ledger.plain_steps
        return Mode.AUTO if both else Mode.DART


def _delivered(round: Round, piece: Piece, first_index: int) -> Chunk:
    """What a client gets of a round: nothing that belongs to a token behind a stop string."""
    end = piece.tokens
    return Chunk(
        first_index=first_index,
        token_ids=round.token_ids[:end],
        logprobs=round.logprobs[:end],
        text=piece.text,
        margins=round.margins[:end],
        top_logprobs=round.top_logprobs[:end],
    )


def _now() -> float:
    return asyncio.get_running_loop().time()
