"""An engine with a stand-in for the Rounds stream, driven command by command."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from dartspec.services.common.types import Sampling, Tree
from dartspec.services.verifier.admission import Admission
from dartspec.services.verifier.budget import Budget, FixedBudget
from dartspec.services.verifier.decoder import Decoder
from dartspec.services.verifier.engine import Engine
from dartspec.services.verifier.messages import Close, Decode, Event, Failed, Load, Open, Round, Verify

from .tiny import CONTEXT, MAX_NODES

# Only a broken engine makes a test wait this long.
PATIENCE_SECONDS = 60
GREEDY = Sampling(0.0, 400, ignore_eos=True)


class FakeOwner:
    """Keeps what it is delivered, event by event."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.inbox: queue.Queue[tuple[Event, Load]] = queue.Queue()
        self.waiting: list[Event] = []
        self.load = Load()

    def deliver(self, events: list[Event], load: Load) -> None:
        for event in events:
            self.inbox.put((event, load))

    def next(self, session: int) -> Event:
        """The session's next event; those of other sessions wait."""
        for index, event in enumerate(self.waiting):
            if event.session == session:
                return self.waiting.pop(index)
        while True:
            event, self.load = self.inbox.get(timeout=PATIENCE_SECONDS)
            if event.session == session:
                return event
            self.waiting.append(event)

    def round(self, session: int) -> Round:
        event = self.next(session)
        assert isinstance(event, Round), event
        return event

    def failure(self, session: int) -> Failed:
        event = self.next(session)
        assert isinstance(event, Failed), event
        return event

    def nothing_more(self) -> bool:
        """No event has been left unread."""
        return self.inbox.empty() and not self.waiting

    def open(
        self,
        session: int,
        prompt: Sequence[int] = (5, 6, 7),
        sampling: Sampling = GREEDY,
        seed: int = 0,
        draft_after: bool = False,
        plain_only: bool = False,
        time_left_ms: int = 0,
        prompt_len: int | None = None,
    ) -> None:
        length = len(prompt) if prompt_len is None else prompt_len
        self.engine.submit(
            self,
            Open(session, list(prompt), length, sampling, seed, time_left_ms, str(session), draft_after, plain_only),
        )

    def verify(self, session: int, n: int, tree: Tree | None, chain_nodes: int = 0, draft_after: bool = False) -> None:
        self.engine.submit(self, Verify(session, n, tree, chain_nodes, draft_after))

    def decode(self, session: int, n: int, steps: int, draft_after: bool = False, may_offer: bool = False) -> None:
        self.engine.submit(self, Decode(session, n, steps, draft_after, may_offer))

    def close(self, session: int) -> None:
        self.engine.submit(self, Close(session))


@contextmanager
def running(
    decoder: Decoder,
    *,
    sessions: int = 64,
    kv_positions: int = 1 << 20,
    context: int = CONTEXT,
    budget: int = MAX_NODES,
    idle_seconds: float = 1e3,
    policy: Budget | None = None,
) -> Iterator[Engine]:
    admission = Admission(sessions, kv_positions, context, budget)
    engine = Engine(decoder, admission, policy or FixedBudget(budget), idle_seconds=idle_seconds)
    engine.start()
    try:
        yield engine
    finally:
        engine.stop()


@contextmanager
def held(engine: Engine) -> Iterator[None]:
    """The engine takes nothing from its inbox while this is open, so what is submitted comes at once afterwards."""
    release = threading.Event()
    waiting = engine.call(lambda: release.wait(PATIENCE_SECONDS))
    try:
        yield
    finally:
        release.set()
        waiting.result(PATIENCE_SECONDS)


def settle(engine: Engine) -> None:
    """Return when every command submitted before has been applied."""
    engine.call(lambda: None).result(PATIENCE_SECONDS)


def gauges(engine: Engine) -> tuple[int, int, int, int, int]:
    """What must be zero when nothing is open: both of admission, then the load report's."""

    def read() -> tuple[int, int, int, int, int]:
        load = engine.load
        return engine.admission.sessions, engine.admission.kv_used, load.sessions, load.queued, load.kv_used

    return engine.call(read).result(PATIENCE_SECONDS)  # between two steps, when they agree


IDLE = (0, 0, 0, 0, 0)


def kept(engine: Engine) -> tuple[int, ...]:
    """Sizes of everything that the engine remembers by session or stream; on its thread."""
    sessions = engine._sessions
    tables = sessions, sessions.ready, sessions._finished, sessions._highest, sessions._unanswered
    return tuple(map(len, (*tables, engine._stragglers._left)))


NOTHING_KEPT = (0, 0, 0, 0, 0, 0)


def chain(tokens: Sequence[int]) -> Tree:
    """A chain of equally likely nodes."""
    return Tree.chain(np.array(tokens, np.int32), np.full(len(tokens), 0.5, np.float32))
