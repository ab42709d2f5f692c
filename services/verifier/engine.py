"""The engine thread: takes commands, admits sessions, makes a pass a step for all that can go on, answers with events.

Everything that touches a model or a session happens on this thread. Other threads only put commands into its inbox.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
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
from dartspec.services.verifier.budget import Budget, Outcome
from dartspec.services.verifier.decoder import Commit, Decoder, Work, best_chain
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
from dartspec.services.verifier.scheduler import choose
from dartspec.services.verifier.session import Session
from dartspec.services.verifier.stragglers import Stragglers
from dartspec.services.verifier.tree import check_tree, cut

log = logging.getLogger(__name__)

MAX_CREDIT = 4096
_IDLE_CHECK_SECONDS = 0.5

T = TypeVar("T")


class Owner(Protocol):
    """One Rounds stream. ``deliver`` is called on the engine thread and must not block."""

    def deliver(self, events: list[Event], load: Load) -> None:
        """Send the events of one step."""


Key = tuple[Owner, int]


@dataclass
class _Done:
    """What a pass did for one session. ``before``: tokens of the answer before it."""

    key: Key
    work: Work
    offered: Tree
    commit: Commit
    before: int
    wait_ms: float
    no_draft: NoDraft | None = None
    drafted: bool = False


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
        self._sessions: dict[Key, Session] = {}
        self._highest: dict[Owner, int] = {}
        # Sessions that can go on, in the order in which they became so.
        self._ready: dict[Key, Session] = {}
        self._stragglers = Stragglers()
        # End of the last pass, while trees are on their way.
        self._passed: float | None = None
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
            self._take_commands(0.0 if self._ready else _IDLE_CHECK_SECONDS)
            while not self._stopping and (pause := self._worth_waiting()) > 0:
                if not self._take_commands(pause):
                    break
            if self._stopping:
                return
            now = time.monotonic()
            if now - checked > _IDLE_CHECK_SECONDS:
                checked = now
                self._expire(now)
            if self._ready:
                self._step()

    def _worth_waiting(self) -> float:
        """Seconds that the next pass should wait for sessions whose candidates are being searched."""
        ready = len(self._ready)
        return self._stragglers.patience(ready, time.monotonic()) if ready else 0.0

    def _take_commands(self, wait: float) -> bool:
        """Apply everything in the inbox, waiting so many seconds for the first; whether there was any."""
        taken = False
        while True:
            try:
                item = self._inbox.get(block=wait > 0, timeout=wait or None)
            except queue.Empty:
                return taken
            taken, wait = True, 0.0
            if item is None:
                self._stopping = True
                return True
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
        else:
            _check_n(command.n, session.n + session.credit, session.verify is None and not session.prefilling)
            if not 1 <= command.steps <= MAX_CREDIT - session.credit:
                raise InvalidArgument("decode.steps", f"must be between 1 and {MAX_CREDIT}, got {command.steps}")
            session.credit += command.steps
        session.draft_after = command.draft_after
        self._wake(key)

    def _wake(self, key: Key) -> None:
        session = self._sessions[key]
        session.active_at = time.monotonic()
        self._stragglers.arrived(key, session.active_at)
        if key not in self._ready:
            session.waiting_since = session.active_at
            self._ready[key] = session

    def _step(self) -> None:
        """One pass for the sessions whose turn it is, and what follows from it."""
        begin = time.monotonic()
        for key, session in list(self._ready.items()):
            if session.deadline is not None and begin >= session.deadline:
                self._fail(key, DeadlineExceeded("the request's time is over"))
        keys = {id(session): key for key, session in self._ready.items()}
        decoding, reading = choose(list(self._ready.values()))
        if not decoding and not reading:
            return
        works, offers = self._works(decoding, reading)
        if self._passed is not None and any(len(work.tree) for work in works):
            self.budget.observe_overhead(1e3 * (begin - self._passed))
        before = [work.session.history.length for work in works]  # a pass that fails has committed nothing
        try:
            results = self.decoder.step(works)
        except Exception as error:
            log.exception("a pass of %d sessions failed", len(works))
            cause = InternalError(f"the pass failed: {type(error).__name__}: {error}")
            for work, committed in zip(works, before, strict=True):
                self._fail(keys[id(work.session)], cause, committed)
            return
        passed = time.monotonic()
        done: list[_Done] = []
        for work, result, offered, committed in zip(works, results, offers, before, strict=True):
            key, session = keys[id(work.session)], work.session
            if isinstance(result, DartspecError):
                self._fail(key, result, committed)
                continue
            wait_ms = 1e3 * (begin - session.waiting_since)
            if result is not None:
                done.append(_Done(key, work, offered, result, committed, wait_ms))
            self._rest(key, session)
        self._stragglers.passed(passed - begin)
        self._observe(done, works, 1e3 * (passed - begin))
        self._draft(done, len(decoding))
        drafted = time.monotonic()
        self._passed = passed if any(each.drafted for each in done) else None
        self._answer(done, 1e3 * (passed - begin), 1e3 * (drafted - passed))

    def _rest(self, key: Key, session: Session) -> None:
        """After a pass: back into the queue, at its end, if the session can go on."""
        del self._ready[key]
        session.active_at = time.monotonic()
        if session.runnable:
            session.waiting_since = session.active_at
            self._ready[key] = session

    def _works(
        self, decoding: Sequence[Session], reading: Sequence[tuple[Session, int]]
    ) -> tuple[list[Work], list[Tree]]:
        """The rows of the next pass, and the tree that was offered for each session in it."""
        offers = [self._take_offer(session) for session in decoding]
        # The last candidate that can be committed is the one that reaches the limit.
        shallow = [cut(tree, len(tree), max_depth=session.room) for session, tree in zip(decoding, offers, strict=True)]
        forced = [session.opened.always_draft for session in decoding]
        rows = len(decoding) + sum(rows for _, rows in reading)
        counts = self.budget.admit(shallow, forced, rows)
        works = [
            Work(session, cut(tree, count, max_depth=session.room))
            for session, tree, count in zip(decoding, shallow, counts, strict=True)
        ]
        works += [Work(session, Tree.empty(), rows) for session, rows in reading]
        return works, [*offers, *(Tree.empty() for _ in reading)]

    def _take_offer(self, session: Session) -> Tree:
        """The candidates that a session brings to the pass, which uses its order up."""
        offered = Tree.empty()
        if session.verify is not None:
            offered = self._offered(session, session.verify)
            session.verify = None
        else:
            session.credit -= 1
        session.proposals = None
        return offered

    def _observe(self, done: Sequence[_Done], works: Sequence[Work], spent_ms: float) -> None:
        outcomes = [
            Outcome(each.work.session.gain, each.work.tree, each.commit.walk.accepted, len(each.commit.walk.tokens))
            for each in done
            if not each.work.rows
        ]
        if outcomes:
            self.budget.observe(outcomes, sum(work.rows or len(work.tree) + 1 for work in works), spent_ms)

    def _draft(self, done: list[_Done], decoding: int) -> None:
        """One pass of the head for all sessions that want proposals and for which they pay."""
        for each in done:
            session = each.work.session
            if session.credit == 0 and session.draft_after:
                each.no_draft = self._no_draft(session, each.commit, decoding)
                each.drafted = each.no_draft is None
        drafting = [each for each in done if each.drafted]
        if not drafting:
            return
        try:
            self.decoder.draft([each.work.session for each in drafting])
        except Exception as error:
            log.exception("a draft for %d sessions failed", len(drafting))
            for each in drafting:
                self._fail(each.key, InternalError(f"the draft failed: {type(error).__name__}: {error}"), each.before)
                done.remove(each)

    def _answer(self, done: Sequence[_Done], verify_ms: float, draft_ms: float) -> None:
        """One message to every stream that has a session in the pass."""
        events: dict[Owner, list[Event]] = {}
        now = time.monotonic()
        for each in done:
            session = each.work.session
            finish = session.finish_of(session.tokens[-1])
            self._count(each.commit, len(each.work.tree))
            events.setdefault(each.key[0], []).append(
                Round(
                    session=each.key[1],
                    n=len(session.tokens) - 1,
                    token_ids=each.commit.walk.tokens,
                    logprobs=each.commit.logprobs,
                    margins=each.commit.margins,
                    accepted=each.commit.walk.accepted,
                    nodes_offered=len(each.offered),
                    nodes_verified=len(each.work.tree),
                    proposals=session.proposals if each.drafted else None,
                    no_draft=each.no_draft,
                    draft_ms=draft_ms if each.drafted else 0.0,
                    verify_ms=verify_ms,
                    wait_ms=each.wait_ms,
                    finish=finish,
                )
            )
            if finish is not None:
                self._remove(each.key)
            elif each.drafted:
                self._stragglers.left(each.key, now)
        for owner, batch in events.items():
            self._deliver(owner, batch)

    def _offered(self, session: Session, command: Verify) -> Tree:
        if command.tree is not None:
            return command.tree
        assert session.proposals is not None
        return best_chain(session.proposals, command.chain_nodes or session.proposals.depth, session.enders)

    def _no_draft(self, session: Session, commit: Commit, decoding: int) -> NoDraft | None:
        if commit.finished:
            return NoDraft.FINISHED
        if self.decoder.proposer is None:
            return NoDraft.NO_HEAD
        if session.head_cache is None:
            return NoDraft.PLAIN_ONLY
        if session.room < 2:
            return NoDraft.NEAR_LIMIT
        if not session.opened.always_draft and not self.budget.pays(session.gain, decoding):
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
        self._ready.pop(key, None)
        self._stragglers.gone(key)

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
