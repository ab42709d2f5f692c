"""The engine thread: takes commands, admits sessions, makes one pass a step, answers with events.

Everything that touches a model or a session happens on this thread. Other threads only put commands into its inbox.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

from dartspec.services.common.errors import (
    DartspecError,
    DeadlineExceeded,
    Evicted,
    InternalError,
    InvalidArgument,
)
from dartspec.services.common.types import Tree
from dartspec.services.verifier.admission import Admission
from dartspec.services.verifier.budget import Budget
from dartspec.services.verifier.decoder import Commit, Decoder, best_chain
from dartspec.services.verifier.messages import (
    Close,
    Command,
    Event,
    Failed,
    Load,
    Malformed,
    NoDraft,
    Open,
    Round,
    Verify,
)
from dartspec.services.verifier.session import Session
from dartspec.services.verifier.tree import check_tree, cut

log = logging.getLogger(__name__)

MAX_CREDIT = 4096
_IDLE_CHECK_SECONDS = 0.5

T = TypeVar("T")


class Owner(Protocol):
    """One Rounds stream. ``deliver`` is called on the engine thread and must not block."""

    def deliver(self, events: list[Event], load: Load) -> None:
        """Send the events of one step."""


@dataclass
class _Call:
    """A function to run on the engine thread between steps."""

    function: Callable[[], Any]
    future: Future[Any]


class Engine:
    """Owns the sessions of all streams. Start with ``start``, end with ``stop``."""

    def __init__(self, decoder: Decoder, admission: Admission, budget: Budget, idle_seconds: float) -> None:
        self.decoder = decoder
        self.admission = admission
        self.budget = budget
        self._idle_seconds = idle_seconds
        self._inbox: queue.SimpleQueue[tuple[Owner, Command | None] | _Call | None] = queue.SimpleQueue()
        self._sessions: dict[tuple[Owner, int], Session] = {}
        self._highest: dict[Owner, int] = {}
        self._ready: deque[tuple[Owner, int]] = deque()
        self._load = Load(kv_capacity=admission.kv_positions)
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    # Other threads.

    def start(self) -> None:
        """Begin to take commands."""
        self._thread.start()

    def stop(self) -> None:
        """Finish the step in progress and end the thread; sessions are dropped."""
        self._inbox.put(None)
        self._thread.join()

    def submit(self, owner: Owner, command: Command) -> None:
        """Hand a command over."""
        self._inbox.put((owner, command))

    def drop(self, owner: Owner) -> None:
        """Close every session of a stream that has ended."""
        self._inbox.put((owner, None))

    def call(self, function: Callable[[], T]) -> Future[T]:
        """Run ``function`` on the engine thread between two steps."""
        future: Future[T] = Future()
        self._inbox.put(_Call(function, future))
        return future

    @property
    def load(self) -> Load:
        """Load after the last step."""
        return self._load

    # The engine thread.

    def _run(self) -> None:
        checked = time.monotonic()
        while True:
            self._take_commands(wait=not self._ready)
            if self._stopping:
                return
            now = time.monotonic()
            if now - checked > _IDLE_CHECK_SECONDS:
                checked = now
                self._expire(now)
            if self._ready:
                self._step(self._ready.popleft())

    def _take_commands(self, wait: bool) -> None:
        """Apply everything in the inbox; wait a moment for the first when there is nothing else to do."""
        while True:
            try:
                item = self._inbox.get(block=wait, timeout=_IDLE_CHECK_SECONDS)
            except queue.Empty:
                return
            wait = False
            if item is None:
                self._stopping = True
                return
            if isinstance(item, _Call):
                _run_call(item)
                continue
            owner, command = item
            if command is None:
                self._drop(owner)
                continue
            try:
                self._apply(owner, command)
            except DartspecError as error:
                self._fail((owner, command.session), error)
            except Exception as error:  # such as memory for a cache that the machine does not have
                log.exception("a command for session %d failed", command.session)
                self._fail((owner, command.session), InternalError(f"{type(error).__name__}: {error}"))

    def _apply(self, owner: Owner, command: Command) -> None:
        key = (owner, command.session)
        if isinstance(command, Open):
            if command.session <= self._highest.get(owner, 0):
                raise InvalidArgument("session", f"id {command.session} was used before; ids rise on a stream")
            self._highest[owner] = command.session
            self._sessions[key] = self.admission.open(command, self.decoder)
            self._wake(key)
            return
        if isinstance(command, Malformed):
            self._highest[owner] = max(command.session, self._highest.get(owner, 0))
            raise command.error
        if isinstance(command, Close):
            self._remove(key)
            self._refresh_load()
            return
        session = self._sessions.get(key)
        if session is None:
            if command.session > self._highest.get(owner, 0):
                raise InvalidArgument("session", f"id {command.session} was never opened on this stream")
            return  # it ended while the command was on its way
        if isinstance(command, Verify):
            _check_n(command.n, session.n, session.credit == 0 and session.verify is None and not session.prefilling)
            if command.tree is not None:
                check_tree(command.tree, self.decoder.target.config.vocab_size)
            elif session.proposals is None:
                raise InvalidArgument("verify.chain", "the session's last round event carried no proposals")
            session.verify = command
            if session.proposals is not None:
                # From the pass's end over draft, transport and search to the candidates' arrival.
                self.budget.observe_overhead(1e3 * (time.monotonic() - session.drafting_since))
        else:
            _check_n(command.n, session.n + session.credit, session.verify is None and not session.prefilling)
            if not 1 <= command.steps <= MAX_CREDIT - session.credit:
                raise InvalidArgument("decode.steps", f"must be between 1 and {MAX_CREDIT}, got {command.steps}")
            session.credit += command.steps
        session.draft_after = command.draft_after
        self._wake(key)

    def _wake(self, key: tuple[Owner, int]) -> None:
        session = self._sessions[key]
        session.active_at = time.monotonic()
        if key not in self._ready:
            session.waiting_since = session.active_at
            self._ready.append(key)

    def _step(self, key: tuple[Owner, int]) -> None:
        """One pass for one session."""
        session = self._sessions.get(key)
        if session is None:
            return
        committed = session.history.length  # a pass that fails half way has committed nothing
        try:
            event = self._pass(key[1], session)
        except DartspecError as error:
            self._fail(key, error, committed)
            return
        except Exception as error:
            log.exception("a pass for request %s failed", session.opened.request_id)
            self._fail(key, InternalError(f"the pass failed: {type(error).__name__}: {error}"), committed)
            return
        if isinstance(event, Round) and event.finish is not None:
            self._remove(key)
        else:
            session.active_at = time.monotonic()
            if session.runnable:
                session.waiting_since = session.active_at
                self._ready.append(key)
        if event is not None:
            self._deliver(key[0], [event])

    def _pass(self, session_id: int, session: Session) -> Round | None:
        begin = time.monotonic()
        if session.deadline is not None and begin >= session.deadline:
            raise DeadlineExceeded("the request's time is over")
        wait_ms = 1e3 * (begin - session.waiting_since)
        offered = tree = Tree.empty()
        first = session.prefilling
        if first:
            commit = self.decoder.prefill(session)
            if commit is None:
                return None
        else:
            if session.verify is not None:
                offered = self._offered(session, session.verify)
                # The last candidate that can be committed is the one that reaches the limit.
                nodes = self.budget.nodes(offered, forced=session.opened.always_draft)
                tree = cut(offered, nodes, max_depth=session.room)
                session.verify = None
            else:
                session.credit -= 1
            session.proposals = None
            commit = self.decoder.verify(session, tree)
        verified = time.monotonic()
        if not first:
            self.budget.observe(
                session.gain, tree, commit.walk.accepted, len(commit.walk.tokens), 1e3 * (verified - begin)
            )
        finish = session.finish_of(session.tokens[-1])
        no_draft = self._no_draft(session, commit) if session.credit == 0 and session.draft_after else None
        proposals = None
        if session.draft_after and session.credit == 0 and no_draft is None:
            proposals = self.decoder.draft(session)
        drafted = time.monotonic()
        if proposals is not None:
            session.drafting_since = verified
        self._count(commit, len(tree))
        return Round(
            session=session_id,
            n=len(session.tokens) - 1,
            token_ids=commit.walk.tokens,
            logprobs=commit.logprobs,
            margins=commit.margins,
            accepted=commit.walk.accepted,
            nodes_offered=len(offered),
            nodes_verified=len(tree),
            proposals=proposals,
            no_draft=no_draft,
            draft_ms=1e3 * (drafted - verified) if proposals is not None else 0.0,
            verify_ms=1e3 * (verified - begin),
            wait_ms=wait_ms,
            finish=finish,
        )

    def _offered(self, session: Session, command: Verify) -> Tree:
        if command.tree is not None:
            return command.tree
        assert session.proposals is not None
        return best_chain(session.proposals, command.chain_nodes or session.proposals.depth, session.enders)

    def _no_draft(self, session: Session, commit: Commit) -> NoDraft | None:
        if commit.finished:
            return NoDraft.FINISHED
        if self.decoder.proposer is None:
            return NoDraft.NO_HEAD
        if session.head_cache is None:
            return NoDraft.PLAIN_ONLY
        if session.room < 2:
            return NoDraft.NEAR_LIMIT
        if not session.opened.always_draft and not self.budget.pays(session.gain):
            return NoDraft.DOES_NOT_PAY
        return None

    def _count(self, commit: Commit, nodes: int) -> None:
        load = self._load
        self._load = replace(
            load,
            committed_tokens=load.committed_tokens + len(commit.walk.tokens),
            rounds=load.rounds + (nodes > 0),
            accepted_tokens=load.accepted_tokens + commit.walk.accepted,
        )

    def _expire(self, now: float) -> None:
        for key, session in list(self._sessions.items()):
            if session.deadline is not None and now >= session.deadline:
                self._fail(key, DeadlineExceeded("the request's time is over"))
            elif not session.runnable and now - session.active_at > self._idle_seconds:
                self._fail(key, Evicted(f"the session was idle for {self._idle_seconds:g} s; open it again to go on"))

    def _fail(self, key: tuple[Owner, int], error: DartspecError, committed: int | None = None) -> None:
        session = self._sessions.get(key)
        if committed is None:
            committed = session.history.length if session is not None else 0
        self._remove(key)
        self._deliver(key[0], [Failed(key[1], error, committed)])

    def _remove(self, key: tuple[Owner, int]) -> None:
        session = self._sessions.pop(key, None)
        if session is not None:
            self.admission.release(session)
        if key in self._ready:
            self._ready.remove(key)

    def _drop(self, owner: Owner) -> None:
        for key in [key for key in self._sessions if key[0] is owner]:
            self._remove(key)
        self._highest.pop(owner, None)
        self._refresh_load()

    def _deliver(self, owner: Owner, events: list[Event]) -> None:
        self._refresh_load()
        owner.deliver(events, self._load)

    def _refresh_load(self) -> None:
        self._load = replace(
            self._load,
            sessions=len(self._sessions),
            queued=len(self._ready),
            kv_used=self.admission.kv_used,
        )


def _check_n(stated: int, actual: int, idle: bool) -> None:
    if not idle:
        raise InvalidArgument("n", "a command for this session is outstanding already")
    if stated != actual:
        raise InvalidArgument("n", f"the session is at {actual}, the command says {stated}")


def _run_call(call: _Call) -> None:
    if not call.future.set_running_or_notify_cancel():
        return
    try:
        call.future.set_result(call.function())
    except Exception as error:
        call.future.set_exception(error)
