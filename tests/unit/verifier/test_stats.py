"""What the engine counts and measures: against a count by hand, and a clock that only moves when it is told to."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any

import numpy as np
import pytest

from dartspec.services.common.histogram import Histogram
from dartspec.services.common.types import Sampling, Tree
from dartspec.services.verifier import engine as engine_module
from dartspec.services.verifier import open_sessions
from dartspec.services.verifier.convert import load_to_proto
from dartspec.services.verifier.decoder import Decoder, Work
from dartspec.services.verifier.measures import BOUNDS, DEPTHS, DepthCounts, Mean, Rate
from dartspec.services.verifier.messages import Event, Load
from dartspec.services.verifier.tree import depths

from .driver import GREEDY, FakeOwner, chain, held, running, settle
from .tiny import VOCAB, plain, random_tree, tiny_decoder


@pytest.fixture
def decoder() -> Decoder:
    return tiny_decoder()


@pytest.mark.parametrize("longest", [1, 8, DEPTHS, DEPTHS + 20])
def test_depths_are_counted_as_by_hand(longest: int) -> None:
    rng = random.Random(longest)
    verified: Counter[int] = Counter()
    accepted: Counter[int] = Counter()
    counts = DepthCounts()
    for _ in range(30):
        rounds = []
        for _ in range(rng.randint(1, 5)):
            tree = rng.choice([random_tree(rng, []), chain(range(rng.randint(1, longest)))])
            if not len(tree):
                continue
            depth = depths(tree)
            taken = rng.randint(0, int(depth.max()))
            rounds.append((taken, depth))
            verified.update(min(int(each), DEPTHS) for each in depth[1:])
            accepted.update(min(each, DEPTHS) for each in range(1, taken + 1))
        if rounds:
            assert counts.add(rounds) == sum(taken for taken, _ in rounds)
    assert counts.verified == tuple(verified[depth] for depth in range(1, max(verified) + 1))
    assert counts.accepted == tuple(accepted[depth] for depth in range(1, max(verified) + 1))
    assert sum(counts.accepted) == counts.accepted_tokens


def test_a_histogram_counts_like_numpy() -> None:
    values = np.concatenate([np.random.default_rng(0).lognormal(-4, 3, 2000), BOUNDS, [0.0, 1e9]])
    histogram = Histogram(BOUNDS)
    for value in values:
        histogram.add(float(value))
    read = histogram.copy()
    # Buckets of Prometheus hold what is at most their bound.
    cumulated = [int((values <= bound).sum()) for bound in BOUNDS]
    assert np.cumsum(read.counts).tolist() == [*cumulated, len(values)]
    assert read.sum == pytest.approx(values.sum())


def test_a_running_mean_begins_as_a_plain_one_and_follows() -> None:
    mean = Mean()
    assert mean.value == 0.0
    for value in (2.0, 4.0, 9.0):
        mean.add(value)
    assert mean.value == pytest.approx(5.0)
    for _ in range(100):
        mean.add(1.0)
    assert mean.value == pytest.approx(1.0, abs=1e-3)


def test_a_rate_is_of_the_time_with_work_and_follows() -> None:
    rate = Rate()
    assert rate.value == 0.0
    for _ in range(100):
        rate.add(4, 0.02)
    assert rate.value == pytest.approx(200.0, rel=1e-2)
    for _ in range(4000):
        rate.add(1, 0.02)
    assert rate.value == pytest.approx(50.0, rel=1e-2)


class Clock:
    """Seconds that pass when ``spend`` is called."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now

    def spend(self, seconds: float, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, which takes so long."""

        def slow(*arguments: Any) -> Any:
            self.now += seconds
            return function(*arguments)

        return slow


class SlowOwner(FakeOwner):
    """Its messages take half a second."""

    clock: Clock

    def deliver(self, events: list[Event], load: Load) -> None:
        self.clock.now += 0.5
        super().deliver(events, load)


def test_a_steps_time_is_the_pass_the_draft_and_its_own(decoder: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    step = decoder.step

    def pass_of_3_seconds(works: Sequence[Work]) -> Any:
        results = step(works)
        decoder.pass_seconds = 2.5  # the walks take the rest
        return results

    monkeypatch.setattr(engine_module, "time", clock)
    monkeypatch.setattr(open_sessions, "time", clock)
    monkeypatch.setattr(decoder, "step", clock.spend(3.0, pass_of_3_seconds))
    monkeypatch.setattr(decoder, "draft", clock.spend(2.0, decoder.draft))
    with running(decoder) as engine:
        owner = SlowOwner(engine)
        owner.clock = clock
        owner.open(1, draft_after=True)
        first = owner.round(1)
        settle(engine)
        clock.now += 500.0  # nobody is there
        settle(engine)
        owner.decode(1, first.n, 3)
        for _ in range(3):
            owner.round(1)
        settle(engine)
        figures, load = engine.stats.figures(), engine.call(lambda: engine.load).result(60)
    assert (sum(figures.passes.counts), figures.passes.sum) == (4, pytest.approx(4 * 2.5))
    assert (sum(figures.drafts.counts), figures.drafts.sum) == (1, pytest.approx(2.0))
    assert (sum(figures.own.counts), figures.own.sum) == (4, pytest.approx(4 * (0.5 + 0.5)))
    assert (sum(figures.first_tokens.counts), figures.first_tokens.sum) == (1, pytest.approx(5.0))
    assert (load.pass_ms, load.draft_ms) == (pytest.approx(2500.0), pytest.approx(2000.0))
    # 4 tokens in 5.5 s with a draft and 3 times 3.5 s; a little less counts of what is longer ago.
    assert load.committed_tokens_per_second == pytest.approx(4 / 16, rel=0.15)


def test_what_is_open_is_told_apart(decoder: Decoder) -> None:
    with running(decoder) as engine:
        owner = FakeOwner(engine)
        owner.open(1)
        n = owner.round(1).n
        assert (owner.load.waiting_sessions, owner.load.running_sessions, owner.load.prompt_tokens_left) == (0, 1, 0)
        with held(engine):
            owner.decode(1, n, 1)
            owner.open(2, [3 + i % 50 for i in range(500)])
        owner.round(1)
        # The pass that decoded for session 1 read a part of the other one's prompt.
        assert (owner.load.sessions, owner.load.waiting_sessions, owner.load.running_sessions) == (2, 1, 1)
        assert 0 < owner.load.prompt_tokens_left < 500
        owner.round(2)
        assert (owner.load.waiting_sessions, owner.load.running_sessions, owner.load.prompt_tokens_left) == (0, 2, 0)
        assert engine.stats.figures().prompt_tokens == 503
        engine.drop(owner)


def test_rounds_are_counted_by_depth(decoder: Decoder) -> None:
    truth = plain(decoder, [5, 6, 7], Sampling(0.0, 12, ignore_eos=True))
    wrong = [(token + 1) % VOCAB for token in truth]
    # One path that is right for two tokens and wrong at the third, and a wrong sibling of the first.
    tree = Tree(
        np.array([truth[1], wrong[1], truth[2], wrong[3]], np.int32),
        np.array([0, 0, 1, 3], np.int32),
        np.full(4, 0.5, np.float32),
        np.zeros(4, np.uint16),
    )
    with running(decoder) as engine:
        owner = FakeOwner(engine)
        owner.open(1, sampling=GREEDY)
        owner.verify(1, owner.round(1).n, tree)
        event = owner.round(1)
        assert (event.accepted, event.token_ids) == (2, truth[1:4])
        assert (owner.load.verified_per_depth, owner.load.accepted_per_depth) == ((2, 1, 1), (1, 1, 0))
        assert owner.load.accepted_per_round == 2.0
        owner.verify(1, event.n, chain([wrong[4]]))
        owner.round(1)
        assert (owner.load.verified_per_depth, owner.load.accepted_per_depth) == ((3, 1, 1), (1, 1, 0))
        assert owner.load.accepted_per_round == 1.0
        assert (owner.load.rounds, owner.load.accepted_tokens) == (2, 2)


def test_failures_are_counted_by_code(decoder: Decoder) -> None:
    with running(decoder, sessions=2, idle_seconds=0.2) as engine:
        owner = FakeOwner(engine)
        owner.open(1, [])
        owner.open(2)
        owner.open(3)
        owner.open(4)
        for session in (1, 4):
            owner.failure(session)
        for session in (2, 3):
            owner.round(session)
            owner.failure(session)  # idle
        figures = engine.stats.figures()
    assert figures.failures == {"INVALID_ARGUMENT": 1, "RESOURCE_EXHAUSTED": 1, "ABORTED": 2}
    assert figures.evictions == 2


def test_the_report_on_the_wire_holds_every_figure() -> None:
    values = {}
    for number, each in enumerate(fields(Load), start=1):
        kind = type(each.default)
        values[each.name] = (number, number + 1) if kind is tuple else kind(number)
    message = load_to_proto(Load(**values))
    assert {field.name for field in message.DESCRIPTOR.fields} == set(values)
    for name, value in values.items():
        got = getattr(message, name)
        assert (tuple(got) if isinstance(value, tuple) else got) == value
