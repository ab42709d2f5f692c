"""Answers from an engine in this process: a stand-in for a Rounds stream that grants plain credit."""

from __future__ import annotations

import queue
from collections.abc import Sequence

from dartspec.services.common.types import Sampling
from dartspec.services.verifier.engine import Engine
from dartspec.services.verifier.messages import Decode, Event, Failed, Load, Open

# A pass takes well under a second; without an event for so long the engine hangs.
PATIENCE_SECONDS = 300.0


class PlainClient:
    """Sessions that decode plainly, all at once."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._events: queue.SimpleQueue[list[Event]] = queue.SimpleQueue()
        self._last = 0

    def deliver(self, events: list[Event], load: Load) -> None:
        """Called by the engine."""
        self._events.put(events)

    def answers(self, prompts: Sequence[Sequence[int]], tokens: int) -> list[list[int]]:
        """``tokens`` greedy tokens after each prompt, whatever they are. Raises the first session's error."""
        sampling = Sampling(temperature=0.0, max_tokens=tokens, ignore_eos=True)
        found: dict[int, list[int]] = {}
        for prompt in prompts:
            self._last += 1
            found[self._last] = []
            self._engine.submit(self, Open(self._last, list(prompt), len(prompt), sampling, 0, 0, "bench", False, True))
        unfinished = len(prompts)
        while unfinished:
            for event in self._events.get(timeout=PATIENCE_SECONDS):
                if isinstance(event, Failed):
                    raise event.error
                answer = found[event.session]
                answer += event.token_ids
                unfinished -= event.finish is not None
                if len(answer) == 1 and event.finish is None:
                    self._engine.submit(self, Decode(event.session, event.n, tokens, False))
        return list(found.values())
