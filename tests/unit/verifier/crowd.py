"""Sessions that each end in a phase of their own, acted out on the engine's thread so that every phase is met."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from dartspec.services.common.types import Sampling
from dartspec.services.verifier.decoder import Decoder, Work
from dartspec.services.verifier.engine import Engine
from dartspec.services.verifier.messages import Close, Decode, Event, Failed, Load, Open, Round, Verify

from .tiny import VOCAB

# Inside a pass, where the word reaches the engine while the pass is being made.
READING, FIRST_PASS, TREE_PASS, CREDIT, STREAM = (
    *("half way through its prompt", "in its first pass", "in a pass with a tree", "with credit left"),
    "with its whole stream",
)
# Between passes.
QUEUED, BETWEEN, SEARCH, TREE_WAITS = "queued", "between rounds", "during its search", "before a pass with a tree"
# By itself, or by an error.
FINISHED, MISTAKE, LATE = "at its end", "by a mistake", "too late"
PHASES = (READING, FIRST_PASS, TREE_PASS, CREDIT, QUEUED, BETWEEN, SEARCH, TREE_WAITS, FINISHED, MISTAKE, LATE)


class Life:
    """What one session is going to do. ``number`` is unique in a test."""

    def __init__(self, number: int, phase: str) -> None:
        rng = random.Random(number)
        self.number = number
        self.phase = phase
        self.passes = rng.randint(0, 3) if phase in (TREE_PASS, CREDIT) else 0  # in its phase, that it lets pass
        length = rng.randint(100, 150) if phase == READING else rng.randint(1, 4)
        tokens = rng.randint(1, 3) if phase == FINISHED else 60
        self.opened = Open(
            session=number,
            token_ids=[rng.randrange(VOCAB) for _ in range(length)],
            prompt_len=length,
            sampling=Sampling(rng.choice([0.0, 0.0, 0.0, 1.0]), tokens, ignore_eos=True),
            seed=number,
            time_left_ms=1 if phase == LATE else 0,
            request_id=str(number),
            draft_after=phase in (SEARCH, TREE_WAITS, TREE_PASS) or rng.random() < 0.2,
            plain_only=False,
        )

    def meets(self, work: Work) -> bool:
        """Whether a session that is about to make this pass is where it goes."""
        return {
            READING: 0 < work.rows < work.session.prompt_left,
            FIRST_PASS: work.rows > 0,
            TREE_PASS: len(work.tree) > 0,
            CREDIT: work.session.credit > 0,
            STREAM: not work.rows,
        }.get(self.phase, False)


class Crowd:
    """A stream. ``went`` counts by phase those that met it and are gone, and those that failed."""

    def __init__(self, engine: Engine, lives: Sequence[Life], went: Counter[str]) -> None:
        self.lives = {life.number: life for life in lives}
        self._engine = engine
        self._went = went

    def begin(self) -> None:
        """Open all; those that go while they are queued are closed at once."""
        for life in list(self.lives.values()):
            self._engine.submit(self, life.opened)
            if life.phase == QUEUED:
                self._go(life)

    def before_pass(self, works: Sequence[Work]) -> None:
        """On the engine's thread: the sessions of a pass that begins now."""
        for work in works:
            life = self.lives.get(work.session.opened.session)
            if life is not None and work.session.opened is life.opened and life.meets(work):
                life.passes -= 1
                if life.passes < 0:
                    self._go(life)

    def deliver(self, events: list[Event], load: Load) -> None:
        """React as the session's phase wants it."""
        for event in events:
            life = self.lives.get(event.session)
            if life is None:
                continue
            if isinstance(event, Failed):
                self._went[life.phase if life.phase in (MISTAKE, LATE) else "failed"] += 1
                del self.lives[event.session]
            elif event.finish is not None:
                self._went[life.phase if life.phase == FINISHED else "finished early"] += 1
                del self.lives[event.session]
            else:
                self._react(life, event)

    def _react(self, life: Life, event: Round) -> None:
        number, n = event.session, event.n
        if life.phase == READING:  # its prompt was read at once
            life.phase = BETWEEN
        if life.phase in (BETWEEN, SEARCH):
            self._go(life)
        elif life.phase == MISTAKE:
            self._engine.submit(self, Decode(number, n + 7, 1, draft_after=False))
        elif life.phase == CREDIT:
            if n == len(life.opened.token_ids):
                self._engine.submit(self, Decode(number, n, 40, draft_after=False))
        elif event.proposals is not None:
            self._engine.submit(self, Verify(number, n, None, 0, draft_after=True))
            if life.phase == TREE_WAITS:
                self._go(life)
        else:
            self._engine.submit(self, Decode(number, n, 1, draft_after=True))

    def _go(self, life: Life) -> None:
        if life.phase == STREAM:
            self._went[STREAM] += len(self.lives)
            self.lives.clear()
            self._engine.drop(self)
            return
        self._went[life.phase] += 1
        del self.lives[life.number]
        self._engine.submit(self, Close(life.number))


@contextmanager
def watched_passes(decoder: Decoder, crowds: Sequence[Crowd]) -> Iterator[None]:
    """Every pass is announced to ``crowds`` first."""
    real = decoder.step

    def step(works: Sequence[Work]) -> Any:
        for crowd in crowds:
            crowd.before_pass(works)
        return real(works)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decoder, "step", step)
        yield
