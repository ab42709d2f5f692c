"""The engine in this process, for texts that nobody waits for: prompts in, answers out, as many at once as it holds."""

from __future__ import annotations

import queue
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field

from dartspec.services.common.background import in_daemon_thread
from dartspec.services.common.errors import InternalError, ResourceExhausted
from dartspec.services.common.types import Sampling
from dartspec.services.verifier.config import VerifierSettings
from dartspec.services.verifier.engine import Engine
from dartspec.services.verifier.messages import Decode, Event, Failed, Finish, Load, Open, Round
from dartspec.services.verifier.open_sessions import MAX_CREDIT
from dartspec.services.verifier.replica import Replica, load_replica

# A pass takes well under a second; without an event for so long the engine hangs.
PATIENCE_SECONDS = 300.0


@dataclass(frozen=True)
class Question:
    """A prompt and how to answer it; the answer is a function of these three (docs/exactness.md)."""

    token_ids: list[int]
    sampling: Sampling
    seed: int


@dataclass
class Answer:
    """Tokens of an answer, a stop id included. finish: why it ended, None as long as it goes on."""

    question: int  # its number in the order in which the questions came
    token_ids: list[int] = field(default_factory=list)
    finish: Finish | None = None


def started_engine(settings: VerifierSettings) -> tuple[Replica, Engine]:
    """A loaded replica and its engine at work.

    Loaded in a thread that ends: threads that have computed keep workers, which slow those of the engine down.
    """
    loading: Future[Replica] = in_daemon_thread(lambda: load_replica(settings))
    replica = loading.result()
    engine = Engine(replica.decoder, replica.admission, replica.budget, settings.idle_seconds)
    engine.start()
    return replica, engine


class OfflineStream:
    """Plain decoding of many questions by an engine, as one stream of sessions. One `answers` at a time."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._events: queue.SimpleQueue[list[Event]] = queue.SimpleQueue()
        self._last = 0

    def deliver(self, events: list[Event], load: Load) -> None:
        """Called by the engine."""
        self._events.put(events)

    def answers(self, questions: Iterable[Question], width: int) -> Iterator[Answer]:
        """Answers in the order in which they end, at most ``width`` open at a time; each that ends makes room for one.

        Raises the error of the first question that fails. One that finds the memory full waits for an answer to end.
        """
        waiting = enumerate(questions)
        refused: deque[tuple[int, Question]] = deque()
        open_: dict[int, tuple[Question, Answer]] = {}
        full = False
        try:
            while True:
                while len(open_) < width and not full:
                    found = refused.popleft() if refused else next(waiting, None)
                    if found is None:
                        break
                    open_[self._open(found[1])] = (found[1], Answer(found[0]))
                if not open_:
                    return
                for event in self._next_events():
                    question, answer = open_[event.session]
                    if isinstance(event, Failed):
                        del open_[event.session]
                        if not isinstance(event.error, ResourceExhausted) or not open_:
                            raise event.error
                        refused.append((answer.question, question))
                        full = True
                        continue
                    self._take(event, answer)
                    if event.finish is not None:
                        del open_[event.session]
                        full = False
                        yield answer
        finally:
            if open_:
                self._engine.drop(self)
                self._last = 0
                # Events of dropped sessions that are on their way belong to nobody.
                self._engine.call(lambda: None).result()
                self._events = queue.SimpleQueue()

    def _open(self, question: Question) -> int:
        self._last += 1
        prompt = question.token_ids
        self._engine.submit(
            self, Open(self._last, prompt, len(prompt), question.sampling, question.seed, 0, "offline", False, True)
        )
        return self._last

    def _take(self, event: Round, answer: Answer) -> None:
        first = not answer.token_ids
        answer.token_ids += event.token_ids
        answer.finish = event.finish
        # Credit for all that follows, at once; a longer answer than that gets more when it is used up.
        if event.finish is None and (first or (len(answer.token_ids) - 1) % MAX_CREDIT == 0):
            self._engine.submit(self, Decode(event.session, event.n, MAX_CREDIT, False))

    def _next_events(self) -> list[Event]:
        try:
            return self._events.get(timeout=PATIENCE_SECONDS)
        except queue.Empty:
            raise InternalError(f"the engine said nothing for {PATIENCE_SECONDS:g} s") from None
