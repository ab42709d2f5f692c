"""One answer's place on one verifier: commands out, rounds in."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from dartspec.gateway.convert import round_from_proto
from dartspec.gateway.types import Mode, Opening, Round, RoundKind
from dartspec.services.common.convert import sampling_to_proto
from dartspec.services.common.errors import DartspecError, InternalError, InvalidArgument, error_from_code
from dartspec.v1 import common_pb2, verifier_pb2


class Session:
    """Made by `VerifierLink.open`. Once closed or failed, commands are dropped and `next_round` raises.

    n: position of the pending token. credit: rounds that were asked for and have not come. offered: the last round that
    came, though perhaps not given out yet, carries proposals. heard: called with each round when it comes, and whether
    its proposals are being answered already (`RelayedCall`).
    """

    def __init__(
        self,
        session_id: int,
        opening: Opening,
        send: Callable[[verifier_pb2.Command], None],
        end: Callable[[Session, bool], None],
        allow: Callable[[int], None] = lambda offers: None,
    ) -> None:
        self.id = session_id
        self.credit = 0
        self.asked_at = 0.0
        self.n = len(opening.token_ids) - 1
        self._top_logprobs = opening.sampling.top_logprobs > 0
        self._kind = RoundKind.OPEN
        self._send = send
        self._end = end
        self._allow = allow
        self._allowed = False
        self._answers: deque[tuple[int, asyncio.Future[float | None]]] = deque()  # not asked for yet
        self._answering: asyncio.Future[float | None] | None = None
        self._rounds: deque[Round] = deque()
        self._error: DartspecError | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._ended = False
        self.offered = False
        self.heard: Callable[[Round, bool], object] = lambda round, answering: None
        self._ask(1, RoundKind.OPEN, open=_open_command(opening))

    def verify(self, tree: common_pb2.Tree | None, *, draft_after: bool) -> None:
        """Ask for one pass over the tree; without one over the verifier's own best chain."""
        command = verifier_pb2.VerifyCommand(n=self.n, tree=tree, draft_after=draft_after)
        if tree is None:
            command.chain.SetInParent()
        self._ask(1, RoundKind.VERIFY, verify=command)

    def decode(self, steps: int, *, draft_after: bool, may_offer: bool = False) -> None:
        """Ask for so many more plain steps, one round each; ``may_offer``: unless proposals come before."""
        command = verifier_pb2.DecodeCommand(
            n=self.n + self.credit, steps=steps, draft_after=draft_after, may_offer=may_offer
        )
        self._ask(steps, RoundKind.DECODE, decode=command)

    def allow(self, offers: int) -> None:
        """Let so many offers be answered with trees before their rounds are given out; needs saying after each."""
        if offers or self._allowed:
            self._allowed = bool(offers)
            self._allow(offers)

    async def answered(self, round: Round) -> float | None:
        """Milliseconds that the search took for a round whose offer was answered when it came; None for any other.

        To be asked of every round, in order.
        """
        if not self._answers or self._answers[0][0] != round.n:
            return None
        return await self._answers.popleft()[1]

    @property
    def ahead(self) -> int:
        """Rounds that were asked for and have not been given out by `next_round`."""
        return self.credit + len(self._rounds)

    async def next_round(self) -> Round:
        """The next round. Raises the error that ended the session."""
        while not self._rounds:
            if self._error is not None:
                raise self._error
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        return self._rounds.popleft()

    def close(self) -> None:
        """Free what the verifier holds; may be called again and at any time."""
        self._finish(InternalError("the session is closed"), tell_verifier=True)

    def deliver(self, event: verifier_pb2.Event, *, answering: bool = False) -> Round | None:
        """Take what the verifier sent for this session; the round, if it is one that fits.

        ``answering``: its offer is being answered; `offer_answered` follows.
        """
        if self._ended:
            return None
        if event.WhichOneof("kind") == "failed":
            failed = event.failed
            error = error_from_code(
                failed.code, failed.message, field=failed.field, retry_after_ms=failed.retry_after_ms
            )
            self._finish(error, tell_verifier=False)
            return None
        try:
            round = round_from_proto(event.round, self._kind)
            problem = self._out_of_protocol(round)
        except (ValueError, InvalidArgument) as error:  # such as an enum value that this build does not know
            problem = str(error)
        if problem:
            self._finish(InternalError(f"the verifier broke the protocol: {problem}"), tell_verifier=True)
            return None
        self.n = round.n
        self.offered = round.proposals is not None
        self.credit = 0 if self.offered else self.credit - 1
        self._rounds.append(round)
        if answering:
            self._answering = asyncio.get_running_loop().create_future()
            self._answers.append((round.n, self._answering))
        self.heard(round, answering)
        if round.finish_reason:
            self._finish(InternalError("the answer is finished"), tell_verifier=False)
        self._wake()
        return round

    def offer_answered(self, search_ms: float | None) -> None:
        """The tree for the last offer was sent, after a search that took so long; None: there was no tree."""
        if self._ended:
            return
        if search_ms is not None:
            self._owe(1, RoundKind.VERIFY)
        self._settle(search_ms)

    def expire(self, error: DartspecError) -> None:
        """The request's time is over, whatever the verifier does; it need not go on."""
        self._finish(error, tell_verifier=True)

    def fail(self, error: DartspecError) -> None:
        """The stream is lost; rounds that came before are still given out."""
        self._finish(error, tell_verifier=False)

    def _out_of_protocol(self, round: Round) -> str:
        if self.credit < 1:
            return "a round that nothing asked for"
        if not round.token_ids or len(round.logprobs) != len(round.token_ids):
            return f"{len(round.token_ids)} tokens with {len(round.logprobs)} log-probabilities"
        if len(round.top_logprobs) != (len(round.token_ids) if self._top_logprobs else 0):
            return f"{len(round.token_ids)} tokens with {len(round.top_logprobs)} top log-probabilities"
        if round.n != self.n + len(round.token_ids):
            return f"n is {round.n} after {len(round.token_ids)} tokens from n {self.n}"
        return ""

    def _ask(self, rounds: int, kind: RoundKind, **command: object) -> None:
        if self._ended:
            return
        self._owe(rounds, kind)
        self._send(verifier_pb2.Command(session=self.id, **command))  # type: ignore[arg-type]

    def _owe(self, rounds: int, kind: RoundKind) -> None:
        self.offered = False
        self.credit += rounds
        self.asked_at = asyncio.get_running_loop().time()
        self._kind = kind

    def _finish(self, error: DartspecError, *, tell_verifier: bool) -> None:
        if self._ended:
            return
        self._ended = True
        self.credit = 0
        self._error = error
        self._settle(None)
        self._end(self, tell_verifier)
        self._wake()

    def _settle(self, search_ms: float | None) -> None:
        if self._answering is not None and not self._answering.done():  # whoever waited may have been cancelled
            self._answering.set_result(search_ms)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def _open_command(opening: Opening) -> verifier_pb2.OpenCommand:
    return verifier_pb2.OpenCommand(
        token_ids=opening.token_ids,
        prompt_len=opening.prompt_len,
        sampling=sampling_to_proto(opening.sampling),
        seed=opening.seed,
        time_left_ms=opening.time_left_ms,
        request_id=opening.request_id,
        draft_after=opening.mode is not Mode.PLAIN,
        plain_only=opening.mode is Mode.PLAIN,
        always_draft=opening.mode is Mode.DART,
    )
