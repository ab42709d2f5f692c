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
from dartspec.services.verifier.admission import Admission
from dartspec.services.verifier.budget import Budget
from dartspec.services.verifier.decoder import Commit, Decoder
from dartspec.services.verifier.messages import (
    Close,
    Command,
    Event,
    Failed,
    Load,
    Malformed,
    Open,
    Verify,
)
from dartspec.services.verifier.scheduler import choose
from dartspec.services.verifier.session import Session
from dartspec.services.verifier.stragglers import Stragglers
from dartspec.services.verifier.tree import check_tree
from dartspec.services.verifier.turn import Turn, choose_drafts, outcomes, plan, rows

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
                self._safe_step()

    def _safe_step(self) -> None:
        """A step; a fault of ours in it fails the sessions that it held, so that nobody waits for ever."""
        held = {key: session.history.length for key, session in self._ready.items()}
        try:
            self._step()
        except Exception as error:
            log.exception("a step with %d sessions failed", len(held))
            cause = InternalError(f"the step failed: {type(error).__name__}: {error}")
            for key, delivered in held.items():
                if key in self._sessions:
                    self._fail(key, cause, delivered)

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
        self.admission.reuse(self._ready.values())
        keys = {id(session): key for key, session in self._ready.items()}
        decoding, reading = choose(list(self._ready.values()))
        if not decoding and not reading:
            return
        turns = plan(decoding, reading, self.budget, begin)
        if self._passed is not None and any(len(turn.work.tree) for turn in turns):
            self.budget.observe_overhead(1e3 * (begin - self._passed))
        try:
            results = self.decoder.step([turn.work for turn in turns])
        except Exception as error:
            self._fail_turns(turns, keys, "pass", error)
            return
        passed = time.monotonic()
        done: list[Turn] = []
        for turn, result in zip(turns, results, strict=True):
            key = keys[id(turn.session)]
            if isinstance(result, DartspecError):
                self._fail(key, result, turn.before)
                continue
            turn.commit = result
            done.append(turn)
            self._rest(key, turn.session)
        self._stragglers.passed(passed - begin)
        if decoded := outcomes(done):
            self.budget.observe(decoded, rows(turns), 1e3 * (passed - begin))
        going_on = sum(turn.commit is not None for turn in done)
        drafting = choose_drafts(done, self.decoder, self.budget, going_on)
        if drafting:
            try:
                self.decoder.draft([turn.session for turn in drafting])
            except Exception as error:
                self._fail_turns(drafting, keys, "draft", error)
                done = [turn for turn in done if turn not in drafting]
                drafting = []
        for turn in drafting:
            turn.drafted = True
        drafted = time.monotonic()
        self._passed = passed if drafting else None
        self._answer(done, keys, 1e3 * (passed - begin), 1e3 * (drafted - passed))

    def _fail_turns(self, turns: Sequence[Turn], keys: dict[int, Key], what: str, error: Exception) -> None:
        log.error("a %s for %d sessions failed", what, len(turns), exc_info=error)
        cause = InternalError(f"the {what} failed: {type(error).__name__}: {error}")
        for turn in turns:
            self._fail(keys[id(turn.session)], cause, turn.before)

    def _rest(self, key: Key, session: Session) -> None:
        """After a pass: back into the queue, at its end, if the session can go on."""
        del self._ready[key]
        session.active_at = time.monotonic()
        if session.runnable:
            session.waiting_since = session.active_at
            self._ready[key] = session

    def _answer(self, turns: Sequence[Turn], keys: dict[int, Key], verify_ms: float, draft_ms: float) -> None:
        """One message to every stream that has a session in the pass."""
        events: dict[Owner, list[Event]] = {}
        now = time.monotonic()
        for turn in turns:
            if turn.commit is None:
                continue
            key = keys[id(turn.session)]
            self._count(turn.commit, len(turn.work.tree))
            event = turn.event(key[1], verify_ms, draft_ms)
            events.setdefault(key[0], []).append(event)
            if event.finish is not None:
                self._remove(key)
            elif turn.drafted:
                self._stragglers.left(key, now)
        for owner, batch in events.items():
            self._deliver(owner, batch)

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
