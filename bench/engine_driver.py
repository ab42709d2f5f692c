"""Answers from an engine in this process: a stand-in for a Rounds stream, with plain credit or an oracle's trees."""

from __future__ import annotations

import queue
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dartspec.services.common.background import in_daemon_thread
from dartspec.services.common.types import Sampling, Tree
from dartspec.services.verifier.config import VerifierSettings
from dartspec.services.verifier.engine import Engine
from dartspec.services.verifier.messages import Decode, Event, Failed, Load, Open, Round, Verify
from dartspec.services.verifier.replica import Replica, load_replica

# A pass takes well under a second; without an event for so long the engine hangs.
PATIENCE_SECONDS = 300.0
# More than an answer has.
CREDIT = 4096


def started_engine(settings: VerifierSettings) -> tuple[Replica, Engine]:
    """A loaded replica and its engine at work.

    Loaded in a thread that ends: threads that have computed keep workers, which slow those of the engine down.
    """
    loading: Future[Replica] = in_daemon_thread(lambda: load_replica(settings))
    replica = loading.result()
    engine = Engine(replica.decoder, replica.admission, replica.budget, settings.idle_seconds)
    engine.start()
    return replica, engine


@dataclass
class Answer:
    """A session's tokens, and of its rounds with candidates how many there were and what they committed."""

    tokens: list[int] = field(default_factory=list)
    rounds: int = 0
    committed: int = 0


class EngineClient:
    """Sessions of one stream, all at once.

    seconds: of the last answers, from the moment when all had their first token to the end.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._events: queue.SimpleQueue[list[Event]] = queue.SimpleQueue()
        self._last = 0
        self.seconds = 0.0

    def deliver(self, events: list[Event], load: Load) -> None:
        """Called by the engine."""
        self._events.put(events)

    def answers(
        self,
        prompts: Sequence[Sequence[int]],
        tokens: int,
        *,
        truths: Sequence[Sequence[int]] | None = None,
        depth: int = 0,
        **sampling: Any,
    ) -> list[Answer]:
        """``tokens`` tokens after each prompt, whatever they are; greedy unless told otherwise.

        With ``truths``, the answers that are to come, sessions ask for drafts; candidates are then the next ``depth``
        true tokens instead of what the head drafted. Raises the first session's error.
        """
        chosen = Sampling(**{"temperature": 0.0, "max_tokens": tokens, "ignore_eos": True, **sampling})
        found: dict[int, Answer] = {}
        coming: dict[int, Sequence[int]] = {}
        for index, prompt in enumerate(prompts):
            self._last += 1
            found[self._last] = Answer()
            coming[self._last] = truths[index] if truths is not None else ()
            drafts = truths is not None
            self._engine.submit(
                self, Open(self._last, list(prompt), len(prompt), chosen, index, 0, "bench", drafts, not drafts)
            )
        unfinished = len(prompts)
        first = time.perf_counter()
        while unfinished:
            for event in self._events.get(timeout=PATIENCE_SECONDS):
                if isinstance(event, Failed):
                    raise event.error
                answer = found[event.session]
                if not answer.tokens:
                    first = time.perf_counter()
                answer.tokens += event.token_ids
                if event.nodes_offered:
                    answer.rounds += 1
                    answer.committed += len(event.token_ids)
                if event.finish is not None:
                    unfinished -= 1
                else:
                    self._go_on(event, answer, coming[event.session], depth)
        self.seconds = time.perf_counter() - first
        return list(found.values())

    def _go_on(self, event: Round, answer: Answer, truth: Sequence[int], depth: int) -> None:
        done = len(answer.tokens)
        if event.proposals is not None:
            chain = np.array(truth[done : done + depth], np.int32)
            tree = Tree.chain(chain, np.full(len(chain), 0.99, np.float32))
            self._engine.submit(self, Verify(event.session, event.n, tree, 0, True))
        elif done == 1 or event.nodes_offered:
            # The rest of the answer as credit, unless candidates end it.
            self._engine.submit(self, Decode(event.session, event.n, CREDIT, bool(truth), bool(truth)))
