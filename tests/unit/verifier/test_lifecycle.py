"""Sessions that come and go at random, by the thousand: of those that went nothing is left, the others lose nothing."""

from __future__ import annotations

import ctypes
import gc
import random
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import psutil
import pytest
import torch

from dartspec.services.common.types import Sampling
from dartspec.services.draft.cache import HeadCache
from dartspec.services.verifier import linear
from dartspec.services.verifier.decoder import Decoder
from dartspec.services.verifier.engine import Engine
from dartspec.services.verifier.kv_cache import SLOT_BLOCK, KVCache, KVPool
from dartspec.services.verifier.messages import Close, Decode, Event, Failed, Load, Open, Round, Verify
from dartspec.services.verifier.session import Session

from .crowd import PHASES, READING, STREAM, Crowd, Life, watched_passes
from .driver import IDLE, NOTHING_KEPT, PATIENCE_SECONDS, gauges, held, kept, running
from .tiny import VOCAB, plain, random_tree, tiny_decoder

SESSIONS = 10_000
WAVE = 200
# Sessions of a wave on a stream of its own, which ends with all of them.
ON_A_LOST_STREAM = 16
WARM_UP_WAVES = 8
SAMPLE_WAVES = 2


@pytest.fixture
def decoder() -> Decoder:
    return tiny_decoder()


def resident_bytes() -> int:
    """Memory of this process, without what the allocator could give back."""
    gc.collect()
    if sys.platform == "linux":
        ctypes.CDLL(None).malloc_trim(0)
    return psutil.Process().memory_info().rss


def alive() -> int:
    """Sessions and caches that something still holds."""
    gc.collect()
    return sum(type(thing) in (Session, KVCache, HeadCache) for thing in gc.get_objects())


def until(engine: Engine, condition: Callable[[], bool]) -> None:
    """Wait for something that the engine's thread brings about."""
    for _ in range(100_000):
        if engine.call(condition).result(PATIENCE_SECONDS):
            return
        time.sleep(0.001)
    raise AssertionError(f"still open: {gauges(engine)}")


def wave(engine: Engine, rng: random.Random, first: int, went: Counter[str]) -> None:
    """WAVE sessions that all go, each in a phase drawn at random; long prompts, which cost most, less often."""
    phases = rng.choices(PHASES, [0.5 if phase == READING else 1.0 for phase in PHASES], k=WAVE - ON_A_LOST_STREAM)
    lives = [Life(first + i, phase) for i, phase in enumerate(phases)]
    lost = [Life(first + i, STREAM) for i in range(len(lives), WAVE)]
    crowds = [Crowd(engine, lives, went), Crowd(engine, lost, went)]
    with watched_passes(engine.decoder, crowds):
        with held(engine):
            for crowd in crowds:
                crowd.begin()
        until(engine, lambda: len(engine._sessions) == 0 and not any(crowd.lives for crowd in crowds))
    assert gauges(engine) == IDLE
    engine.drop(crowds[0])


def touch(pool: KVPool) -> None:
    """Write all of the pool's memory as it is, so that what kept prefixes come to use later is taken now."""
    for region in pool.regions:
        parts = [region.data] if region.draft is None else [region.data, *vars(region.draft).values()]
        for part in parts:
            if isinstance(part, torch.Tensor):
                part.copy_(part.clone())


def test_ten_thousand_sessions_leave_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    # oneDNN keeps up to a megabyte for every number of rows that it ever saw, which would hide what we keep.
    monkeypatch.setattr(linear, "_pack", lambda weight: None)
    decoder = tiny_decoder()
    decoder.target.pool.limit = 4 * WAVE * SLOT_BLOCK  # in one region from the first session on
    rng = random.Random(5)
    went: Counter[str] = Counter()
    taken, before = decoder.target.pool.taken, alive()
    waves = SESSIONS // WAVE
    memory = []
    with running(decoder, sessions=WAVE) as engine:
        for number in range(WARM_UP_WAVES + waves):
            if number == WARM_UP_WAVES:
                engine.call(lambda: touch(decoder.target.pool)).result(PATIENCE_SECONDS)
            wave(engine, rng, 1 + number * WAVE, went)
            if number >= WARM_UP_WAVES and number % SAMPLE_WAVES == 0:
                memory.append(resident_bytes())
        assert gauges(engine) == IDLE
        assert engine.call(lambda: kept(engine)).result(PATIENCE_SECONDS) == NOTHING_KEPT
        load = engine.load
        assert (load.waiting_sessions, load.running_sessions, load.prompt_tokens_left) == (0, 0, 0)
    assert decoder.target.pool.taken == taken
    assert alive() == before
    # Every phase was met, often, and nothing else happened.
    assert sum(went.values()) == (WARM_UP_WAVES + waves) * WAVE
    assert set(went) == {*PHASES, STREAM}
    assert min(went.values()) > SESSIONS // 200
    third = len(memory) // 3
    early, late = statistics.median(memory[:third]), statistics.median(memory[-third:])
    assert abs(late - early) < 0.01 * early, memory


@dataclass
class Answer:
    """One session that has to give its plain answer, unless it is closed after so many rounds."""

    opened: Open
    truth: list[int]
    closed_after: int | None
    tokens: list[int] = field(default_factory=list)
    rounds: int = 0
    credit: int = 0
    over: bool = False


class Arrivals:
    """A stream on which sessions are opened now and then, with candidates of every kind; some leave early."""

    def __init__(self, engine: Engine, answers: Sequence[Answer], rng: random.Random) -> None:
        self.engine = engine
        self.failures: list[Failed] = []
        self._answers = {answer.opened.session: answer for answer in answers}
        self._coming = list(answers)
        self._rng = rng

    def arrive(self) -> None:
        if self._coming:
            self.engine.submit(self, self._coming.pop(0).opened)

    def deliver(self, events: list[Event], load: Load) -> None:
        while self._coming and self._rng.random() < 0.3:
            self.arrive()
        for event in events:
            answer = self._answers[event.session]
            if isinstance(event, Failed):
                self.failures.append(event)
            elif not answer.over:
                self._go_on(answer, event)

    def _go_on(self, answer: Answer, event: Round) -> None:
        answer.tokens += event.token_ids
        answer.rounds += 1
        answer.credit = max(answer.credit - 1, 0)
        answer.over = event.finish is not None or answer.rounds == answer.closed_after
        number, n, rng = event.session, event.n, self._rng
        if answer.over:
            if event.finish is None:
                self.engine.submit(self, Close(number))
        elif answer.credit == 0:
            draft_after = rng.random() < 0.7
            kind = rng.random()
            if event.proposals is not None and kind < 0.4:
                self.engine.submit(self, Verify(number, n, None, rng.randint(0, 4), draft_after))
            elif kind < 0.8:
                tree = random_tree(rng, answer.truth[len(answer.tokens) :])
                self.engine.submit(self, Verify(number, n, tree, 0, draft_after))
            else:
                answer.credit = rng.randint(1, 6)
                self.engine.submit(self, Decode(number, n, answer.credit, draft_after))


def answers_of(decoder: Decoder, rng: random.Random, count: int) -> list[Answer]:
    """Sessions with prompts that partly begin alike, every third of which leaves early."""
    shared = [rng.randrange(3, VOCAB) for _ in range(300)]
    answers = []
    for number in range(1, count + 1):
        prompt = shared[: rng.choice([0, 40, 300])] + [rng.randrange(3, VOCAB) for _ in range(rng.randint(1, 60))]
        sampling = Sampling(
            temperature=rng.choice([0.0, 0.7, 1.3]),
            max_tokens=rng.randint(5, 40),
            top_k=rng.choice([0, 20]),
            top_p=rng.choice([0.8, 1.0]),
            repetition_penalty=rng.choice([1.0, 1.3]),
            ignore_eos=True,
        )
        closed_after = rng.randint(1, 4) if number % 3 == 0 else None
        order = Open(number, prompt, len(prompt), sampling, number, 0, str(number), rng.random() < 0.7, False)
        answers.append(Answer(order, plain(decoder, prompt, sampling, number), closed_after))
    return answers


@pytest.mark.parametrize("seed", [1, 2])
def test_those_that_stay_get_their_plain_answers(decoder: Decoder, seed: int) -> None:
    rng = random.Random(seed)
    answers = answers_of(decoder, rng, 48)
    with running(decoder) as engine:
        streams = [Arrivals(engine, answers[half::2], rng) for half in range(2)]

        def over() -> bool:
            if not len(engine._sessions):  # nobody is left whose rounds could bring the next one
                for stream in streams:
                    stream.arrive()
            return all(answer.over for answer in answers)

        until(engine, over)
        assert gauges(engine) == IDLE
    assert [stream.failures for stream in streams] == [[], []]
    for answer in answers:
        if answer.closed_after is None:
            assert answer.tokens == answer.truth
        else:
            assert answer.tokens == answer.truth[: len(answer.tokens)]
    closed = sum(len(answer.tokens) < len(answer.truth) for answer in answers)
    assert closed > 4  # some were over before they could leave
