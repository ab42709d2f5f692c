"""The sessions of all streams, which of them a pass can hold, and what commands do to them."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator

from dartspec.services.common.errors import DartspecError, DeadlineExceeded, Evicted, InvalidArgument, Unavailable
from dartspec.services.verifier.admission import RETRY_AFTER_MS, Admission
from dartspec.services.verifier.decoder import Decoder
from dartspec.services.verifier.inbox import Owner
from dartspec.services.verifier.messages import Close, Command, Decode, Malformed, Open, Verify
from dartspec.services.verifier.session import Session
from dartspec.services.verifier.stragglers import Stragglers
from dartspec.services.verifier.tree import check_tree

log = logging.getLogger(__name__)

MAX_CREDIT = 4096

Key = tuple[Owner, int]


class OpenSessions:
    """Used on the engine's thread only.

    ready: sessions that can go on, in the order in which they became so. draining: no session is opened any more.
    """

    def __init__(self, admission: Admission, decoder: Decoder, stragglers: Stragglers) -> None:
        self.ready: dict[Key, Session] = {}
        self.draining = False
        self._admission = admission
        self._decoder = decoder
        self._stragglers = stragglers
        self._sessions: dict[Key, Session] = {}
        self._finished: list[Session] = []  # whose memory is not free yet
        self._highest: dict[Owner, int] = {}
        # When sessions were opened that have no token yet.
        self._unanswered: dict[Key, float] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def __contains__(self, key: Key) -> bool:
        return key in self._sessions

    def generated(self, key: Key) -> int:
        """Tokens of the session's answer, those of another replica included; 0 when it is not open."""
        session = self._sessions.get(key)
        return session.history.length if session is not None else 0

    def apply(self, owner: Owner, command: Command) -> None:
        """Carry out a command. Raises the DartspecError by which its session fails."""
        key = (owner, command.session)
        match command:
            case Open():
                self._open(key, command)
            case Close():
                self.remove(key)
            case Malformed():
                self._highest[owner] = max(command.session, self._highest.get(owner, 0))
                raise command.error
            case Verify() | Decode():
                session = self._sessions.get(key)
                if session is not None:
                    self._order(session, command)
                    if session.runnable:
                        self._wake(key, session)
                elif command.session > self._highest.get(owner, 0):
                    raise InvalidArgument("session", f"id {command.session} was never opened on this stream")
                # Else it ended while the command was on its way.

    def rest(self, key: Key) -> None:
        """After a pass: back into the queue, at its end, if the session can go on."""
        session = self.ready.pop(key)
        session.active_at = time.monotonic()
        if session.runnable:
            session.waiting_since = session.active_at
            self.ready[key] = session

    def offered(self, key: Key, session: Session) -> None:
        """Proposals go out, so the session waits for what comes back."""
        session.offer()
        self.ready.pop(key, None)

    def answered(self, key: Key, now: float) -> float:
        """The session's first token is there; returns the seconds since it was opened."""
        return now - self._unanswered.pop(key)

    def remove(self, key: Key) -> None:
        """The session is over, if it is open."""
        self.finish(key)
        self.free_finished()

    def finish(self, key: Key) -> None:
        """As `remove`, but for its memory: to free that takes longer than its last tokens should wait."""
        session = self._sessions.pop(key, None)
        if session is not None:
            self._admission.leave(session)
            self._finished.append(session)
        self.ready.pop(key, None)
        self._unanswered.pop(key, None)
        self._stragglers.gone(key)

    def free_finished(self) -> None:
        """Give back the memory of sessions that are over. Nobody else's session fails when that does."""
        while self._finished:
            session = self._finished.pop(0)
            try:
                self._admission.free(session)
            except Exception:
                log.exception("the memory of request %s was not freed", session.opened.request_id)

    def drop(self, owner: Owner) -> None:
        """The stream is over, and all its sessions."""
        for key in [key for key in self._sessions if key[0] is owner]:
            self.remove(key)
        self._highest.pop(owner, None)

    def late(self, now: float) -> Iterator[tuple[Key, DartspecError]]:
        """Sessions that can go on but whose time is over. They may be removed meanwhile."""
        for key, session in list(self.ready.items()):
            if session.deadline is not None and now >= session.deadline:
                yield key, DeadlineExceeded("the request's time is over")

    def expired(self, now: float, idle_seconds: float) -> Iterator[tuple[Key, DartspecError]]:
        """Sessions whose time is over, or of which nothing was asked for so long. They may be removed meanwhile."""
        for key, session in list(self._sessions.items()):
            if session.deadline is not None and now >= session.deadline:
                yield key, DeadlineExceeded("the request's time is over")
            elif not session.runnable and now - session.active_at > idle_seconds:
                yield key, Evicted(f"the session was idle for {idle_seconds:g} s; open it again to go on")

    def _open(self, key: Key, command: Open) -> None:
        owner, number = key
        if number <= self._highest.get(owner, 0):
            raise InvalidArgument("session", f"id {number} was used before; ids rise on a stream")
        self._highest[owner] = number
        if self.draining:
            raise Unavailable("this verifier is draining; ask another one", retry_after_ms=RETRY_AFTER_MS)
        session = self._admission.open(command, self._decoder)
        self._sessions[key] = session
        self._wake(key, session)
        self._unanswered[key] = session.active_at

    def _order(self, session: Session, command: Verify | Decode) -> None:
        if isinstance(command, Decode) and command.n == session.lapsed:
            session.lapsed += command.steps  # it was sent before the proposals arrived
            return
        if isinstance(command, Verify):
            _check_n(command.n, session.n, session.credit == 0 and session.verify is None and not session.prefilling)
            if command.tree is not None:
                check_tree(command.tree, self._decoder.target.config.vocab_size)
            elif session.proposals is None:
                raise InvalidArgument("verify.chain", "the session's last round event carried no proposals")
            session.verify = command
        else:
            _check_n(command.n, session.n + session.credit, session.verify is None and not session.prefilling)
            if not 1 <= command.steps <= MAX_CREDIT - session.credit:
                raise InvalidArgument("decode.steps", f"must be between 1 and {MAX_CREDIT}, got {command.steps}")
            session.credit += command.steps
        session.lapsed = None
        session.draft_after = command.draft_after
        session.may_offer = isinstance(command, Decode) and command.may_offer

    def _wake(self, key: Key, session: Session) -> None:
        session.active_at = time.monotonic()
        self._stragglers.arrived(key, session.active_at)
        if key not in self.ready:
            session.waiting_since = session.active_at
            self.ready[key] = session


def _check_n(stated: int, actual: int, idle: bool) -> None:
    if not idle:
        raise InvalidArgument("n", "a command for this session is outstanding already")
    if stated != actual:
        raise InvalidArgument("n", f"the session is at {actual}, the command says {stated}")
