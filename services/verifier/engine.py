"""The engine thread: takes commands, makes a pass a step for all sessions that can go on, answers with events.

Everything that touches a model or a session happens on this thread. Other threads only put things into its inbox.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TypeVar

from dartspec.services.common.errors import DartspecError, InternalError
from dartspec.services.verifier.admission import Admission
from dartspec.services.verifier.budget import Budget, Times
from dartspec.services.verifier.decoder import Decoder
from dartspec.services.verifier.inbox import Call, Drop, Inbox, Order, Owner, Stop
from dartspec.services.verifier.messages import Command, Event, Failed, Load
from dartspec.services.verifier.open_sessions import Key, OpenSessions
from dartspec.services.verifier.scheduler import choose
from dartspec.services.verifier.stats import Stats
from dartspec.services.verifier.stragglers import Stragglers
from dartspec.services.verifier.turn import Turn, choose_drafts, outcomes, plan, shape

log = logging.getLogger(__name__)

_IDLE_CHECK_SECONDS = 0.5

T = TypeVar("T")


class Engine:
    """Owns the sessions of all streams. Start with ``start``, end with ``stop``.

    stats: for any thread. drained: done when the engine drains and nothing is open any more.
    """

    def __init__(self, decoder: Decoder, admission: Admission, budget: Budget, idle_seconds: float) -> None:
        self.decoder = decoder
        self.admission = admission
        self.budget = budget
        self.stats = Stats()
        self.drained: Future[None] = Future()
        self._idle_seconds = idle_seconds
        self._inbox = Inbox()
        self._stragglers = Stragglers()
        self._sessions = OpenSessions(admission, decoder, self._stragglers)
        # End of the last pass, and how many sessions drafted after it; None: there was nothing to do since.
        self._passed: float | None = None
        self._drafted = 0
        # Since when there has been work that the statistics do not know of.
        self._busy_since = 0.0
        self._load = self.stats.load(self._sessions, admission)
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    # Other threads.

    def start(self) -> None:
        """Begin to take commands."""
        self._thread.start()

    def stop(self) -> None:
        """Finish the step in progress and end the thread; sessions are dropped."""
        self._inbox.put(Stop())
        self._thread.join()

    def submit(self, owner: Owner, command: Command) -> None:
        """Hand a command over."""
        self._inbox.put(Order(owner, command))

    def drop(self, owner: Owner) -> None:
        """Close every session of a stream that has ended."""
        self._inbox.put(Drop(owner))

    def call(self, function: Callable[[], T]) -> Future[T]:
        """Run ``function`` on the engine thread between two steps."""
        return self._inbox.call(function)

    def drain(self) -> Future[None]:
        """Open no session any more, end those that are open. Done when that holds; `drained` when they have ended."""

        def begin() -> None:
            self._sessions.draining = True
            self._refresh_load()

        return self.call(begin)

    @property
    def load(self) -> Load:
        """Load after the last step."""
        return self._load

    # The engine thread.

    def _run(self) -> None:
        checked = time.monotonic()
        while True:
            idle = not self._sessions.ready
            self._take_commands(_IDLE_CHECK_SECONDS if idle else 0.0)
            if idle:
                self._busy_since = time.monotonic()
            while not self._stopping and (pause := self._worth_waiting()) > 0:
                if not self._take_commands(pause):
                    break
            if self._stopping:
                return
            now = time.monotonic()
            if now - checked > _IDLE_CHECK_SECONDS:
                checked = now
                for key, error in self._sessions.expired(now, self._idle_seconds):
                    self._fail(key, error)
            if self._sessions.ready:
                self._safe_step()
            if self._sessions.draining and not self._sessions and not self.drained.done():
                self.drained.set_result(None)

    def _safe_step(self) -> None:
        """A step; a fault of ours in it fails the sessions that it held, so that nobody waits for ever."""
        held = {key: session.history.length for key, session in self._sessions.ready.items()}
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
        ready = len(self._sessions.ready)
        return self._stragglers.patience(ready, time.monotonic()) if ready else 0.0

    def _take_commands(self, wait: float) -> bool:
        """Apply everything in the inbox, waiting so many seconds for the first; whether there was any."""
        taken = False
        while (item := self._inbox.get(wait)) is not None:
            taken, wait = True, 0.0
            match item:
                case Stop():
                    self._stopping = True
                    return True
                case Call():
                    self._refresh_load()
                    item.run()
                case Drop():
                    self._sessions.drop(item.owner)
                case Order():
                    self._apply(item.owner, item.command)
        if taken:
            self._refresh_load()
        return taken

    def _apply(self, owner: Owner, command: Command) -> None:
        try:
            self._sessions.apply(owner, command)
        except DartspecError as error:
            self._fail((owner, command.session), error)
        except Exception as error:  # such as memory for a cache that the machine does not have
            log.exception("a command for session %d failed", command.session)
            self._fail((owner, command.session), InternalError(f"{type(error).__name__}: {error}"))

    def _step(self) -> None:
        """One pass for the sessions whose turn it is, a draft for those that want one, and the answers."""
        begin = time.monotonic()
        since, self._passed = self._passed, None
        for key, error in self._sessions.late(begin):
            self._fail(key, error)
        self.admission.reuse(self._sessions.ready.values())
        keys = {id(session): key for key, session in self._sessions.ready.items()}
        decoding, reading = choose(list(self._sessions.ready.values()))
        if not decoding and not reading:
            return
        turns = plan(decoding, reading, self.budget, begin)
        if since is not None and self._drafted and any(len(turn.work.tree) for turn in turns):
            self.budget.observe_overhead(1e3 * (begin - since))
        pass_seconds = self._pass(turns, keys, begin, since)
        if pass_seconds is None:
            return
        draft_seconds = self._draft(turns, keys)
        self._drafted = sum(turn.drafted for turn in turns)
        self._answer(turns, keys, pass_seconds, draft_seconds)
        end = time.monotonic()
        self.stats.ended(end - begin - self.decoder.pass_seconds - (draft_seconds or 0.0), end - self._busy_since)
        self._busy_since = end
        self._passed = begin + pass_seconds if self._drafted or self._sessions.ready else None

    def _pass(self, turns: Sequence[Turn], keys: dict[int, Key], begin: float, since: float | None) -> float | None:
        """The target's pass and what it commits; seconds since ``begin``, or None when it failed as a whole.

        since: end of the pass before, if there has been work all the time.
        """
        try:
            results = self.decoder.step([turn.work for turn in turns])
        except Exception as error:
            self._fail_turns(turns, keys, "pass", error)
            return None
        seconds = time.monotonic() - begin
        for turn, result in zip(turns, results, strict=True):
            key = keys[id(turn.session)]
            if isinstance(result, DartspecError):
                self._fail(key, result, turn.before)
                continue
            turn.commit = result
            self._sessions.rest(key)
        self._stragglers.passed(seconds)
        if decoded := outcomes(turns):
            cycle = None if since is None else 1e3 * (begin + seconds - since)
            away = self._stragglers.away(begin)
            self.budget.observe(decoded, shape(turns), Times(1e3 * seconds, cycle), self._drafted, away)
        return seconds

    def _draft(self, turns: Sequence[Turn], keys: dict[int, Key]) -> float | None:
        """The head's pass for the sessions that want candidates; its seconds, None when there was none."""
        going_on = sum(turn.commit is not None for turn in turns) + self._stragglers.away(time.monotonic())
        drafting = choose_drafts(turns, self.decoder, self.budget, going_on)
        if not drafting:
            return None
        begin = time.monotonic()
        try:
            self.decoder.draft([turn.session for turn in drafting], self.budget.draft_offsets(going_on))
        except Exception as error:
            self._fail_turns(drafting, keys, "draft", error)
            for turn in drafting:
                turn.commit = None  # not delivered, so it does not count
            return None
        for turn in drafting:
            turn.drafted = True
            self._sessions.offered(keys[id(turn.session)], turn.session)
        return time.monotonic() - begin

    def _answer(
        self, turns: Sequence[Turn], keys: dict[int, Key], pass_seconds: float, draft_seconds: float | None
    ) -> None:
        """One message to every stream that has a session in the pass. draft_seconds: None without a draft."""
        events: dict[Owner, list[Event]] = {}
        first_tokens = []
        now = time.monotonic()
        for turn in turns:
            if turn.commit is None:
                continue
            key = keys[id(turn.session)]
            if turn.work.rows:
                first_tokens.append(self._sessions.answered(key, now))
            event = turn.event(key[1], 1e3 * pass_seconds, 1e3 * (draft_seconds or 0.0), self.budget.search_nodes)
            events.setdefault(key[0], []).append(event)
            if event.finish is not None:
                self._sessions.finish(key)
            elif turn.drafted:
                self._stragglers.left(key, now)
        busy = now - self._busy_since
        decoder = self.decoder
        self.stats.stepped(turns, decoder.depths, decoder.pass_seconds, draft_seconds, first_tokens, busy)
        self._busy_since = now
        self._refresh_load()
        for owner, batch in events.items():
            owner.deliver(batch, self._load)
        self._sessions.free_finished()

    def _fail_turns(self, turns: Sequence[Turn], keys: dict[int, Key], what: str, error: Exception) -> None:
        log.error("a %s for %d sessions failed", what, len(turns), exc_info=error)
        cause = InternalError(f"the {what} failed: {type(error).__name__}: {error}")
        for turn in turns:
            self._fail(keys[id(turn.session)], cause, turn.before)

    def _fail(self, key: Key, error: DartspecError, committed: int | None = None) -> None:
        """End a session with an error; ``committed``: tokens of its answer that were delivered, if not all."""
        if committed is None:
            committed = self._sessions.generated(key)
        self._sessions.remove(key)
        self.stats.failed(error)
        self._refresh_load()
        owner, number = key
        owner.deliver([Failed(number, error, committed)], self._load)

    def _refresh_load(self) -> None:
        self._load = self.stats.load(self._sessions, self.admission)
