"""32 sessions of different prompts, seeds and parameters in one engine, which come and go at random.

Each must answer as if it were alone: as an engine that holds nothing else, decoding plainly, and as a sequential loop
that knows neither engine nor trees nor sampler. The trees that are offered hold the right tokens, wrong ones, some of
both, anything, or what the draft head proposes.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from dartspec.services.common.types import Sampling, Tree
from dartspec.services.verifier.decoder import Decoder
from dartspec.services.verifier.messages import Round

from .driver import IDLE, FakeOwner, chain, gauges, held, running
from .naive_decoding import Answered, assert_told_alike, naive_answer
from .tiny import EOS, VOCAB, random_tree, tiny_decoder

SESSIONS = 32
TOLERANCE = 1e-3


@dataclass
class Case:
    """One session: what is asked, what must come, what came."""

    number: int
    prompt: list[int]
    sampling: Sampling
    seed: int
    truth: Answered = field(default_factory=Answered)
    got: Answered = field(default_factory=Answered)
    n: int = 0
    proposed: bool = False


@pytest.fixture(scope="module")
def decoder() -> Decoder:
    return tiny_decoder()


def random_sampling(rng: random.Random) -> Sampling:
    """Every parameter, alone or with others."""

    def sometimes(value: float, otherwise: float) -> float:
        return value if rng.random() < 0.35 else otherwise

    most = rng.randint(6, 24)
    return Sampling(
        temperature=rng.choice([0.0, 0.6, 1.0, 1.4]),
        max_tokens=most,
        top_k=int(sometimes(rng.randint(1, 20), 0)),
        top_p=sometimes(rng.uniform(0.3, 0.99), 1.0),
        min_p=sometimes(rng.uniform(0.001, 0.2), 0.0),
        repetition_penalty=sometimes(rng.uniform(0.7, 1.6), 1.0),
        presence_penalty=sometimes(rng.uniform(-1, 2), 0.0),
        frequency_penalty=sometimes(rng.uniform(-0.5, 2), 0.0),
        logit_bias={rng.randrange(VOCAB): rng.uniform(-3, 3) for _ in range(rng.choice([0, 0, 4]))},
        allowed_token_ids=tuple(rng.sample(range(VOCAB), 30)) if rng.random() < 0.2 else (),
        banned_token_ids=tuple(rng.sample(range(VOCAB), rng.choice([0, 0, 5]))),
        min_tokens=int(sometimes(rng.randint(1, most), 0)),
        stop_token_ids=tuple(rng.sample(range(VOCAB), rng.choice([0, 0, 2]))),
        ignore_eos=rng.random() < 0.5,
        top_logprobs=rng.choice([0, 1, 5, 20]),
    )


def random_cases(rng: random.Random) -> list[Case]:
    shared = [rng.randrange(3, VOCAB) for _ in range(70)]  # half of the prompts begin alike
    cases = []
    for number in range(1, SESSIONS + 1):
        own = [rng.randrange(3, VOCAB) for _ in range(rng.randint(1, 30))]
        prompt = shared[: rng.randint(1, 70)] + own if number % 2 else own
        cases.append(Case(number, prompt, random_sampling(rng), rng.getrandbits(64)))
    return cases


def alone(decoder: Decoder, case: Case) -> Answered:
    """Plain decoding in an engine of its own."""
    answer = Answered()
    with running(decoder) as engine:
        owner = FakeOwner(engine)
        owner.open(1, case.prompt, case.sampling, case.seed, plain_only=True)
        owner.decode(1, len(case.prompt), case.sampling.max_tokens) if take(owner.round(1), answer) else None
        while answer.finish is None:
            take(owner.round(1), answer)
        assert gauges(engine) == IDLE
    return answer


def take(event: Round, answer: Answered) -> bool:
    """Add what a round brought; whether more can follow. Nothing is told of a token that is not delivered."""
    answer.tokens += event.token_ids
    answer.logprobs += event.logprobs
    answer.top_logprobs += event.top_logprobs
    answer.finish = event.finish
    assert len(event.logprobs) == len(event.margins) == len(event.token_ids)
    return event.finish is None


def offered(rng: random.Random, following: Sequence[int]) -> Tree:
    """Candidates for the tokens that will come, right, wrong, right at first, or anything."""
    kind = rng.choice(["right", "wrong", "partly", "any", "any"])
    if kind == "any" or not following:
        return random_tree(rng, following)
    tokens = list(following[: rng.randint(1, 8)])
    if kind != "right":
        first_wrong = 0 if kind == "wrong" else rng.randrange(len(tokens))
        tokens[first_wrong:] = [(token + rng.randint(1, VOCAB - 1)) % VOCAB for token in tokens[first_wrong:]]
    return chain(tokens)


def go_on(owner: FakeOwner, case: Case, rng: random.Random) -> None:
    """One more pass for a session."""
    if case.proposed and rng.random() < 0.3:
        owner.verify(case.number, case.n, None, draft_after=rng.random() < 0.5)
    elif rng.random() < 0.2:
        owner.decode(case.number, case.n, 1, draft_after=rng.random() < 0.5)
    else:
        tree = offered(rng, case.truth.tokens[len(case.got.tokens) :])
        owner.verify(case.number, case.n, tree, draft_after=rng.random() < 0.3)


def run_together(decoder: Decoder, cases: Sequence[Case], rng: random.Random) -> set[int]:
    """Answer all cases in one engine; returns the numbers of those that were cancelled on the way."""
    coming, running_now, cancelled = list(cases), [], set()
    with running(decoder) as engine:
        owner = FakeOwner(engine)
        while coming or running_now:
            asked = []
            with held(engine):  # what is ordered here shares passes
                for case in running_now:
                    if rng.random() < 0.9:
                        go_on(owner, case, rng)
                        asked.append(case)
                for _ in range(min(rng.randint(0, 6), len(coming))):
                    case = coming.pop(0)
                    owner.open(case.number, case.prompt, case.sampling, case.seed, draft_after=rng.random() < 0.5)
                    running_now.append(case)
                    asked.append(case)
                for case in running_now:
                    if rng.random() < 0.015:  # before its pass
                        owner.close(case.number)
                        cancelled.add(case.number)
            for case in running_now:
                if case.number not in cancelled and rng.random() < 0.015:  # during its pass, before or after
                    owner.close(case.number)
                    cancelled.add(case.number)
            running_now = [case for case in running_now if case.number not in cancelled]
            for case in asked:
                if case.number not in cancelled:
                    event = owner.round(case.number)
                    case.n, case.proposed = event.n, event.proposals is not None
                    if not take(event, case.got):
                        running_now.remove(case)
        assert gauges(engine) == IDLE
        while not owner.inbox.empty():
            owner.waiting.append(owner.inbox.get()[0])
        assert {event.session for event in owner.waiting} <= cancelled
    return cancelled


def assert_same(got: Answered, expected: Answered, case: Case) -> None:
    """Equal tokens, one entry a token for everything that is told about it, and close numbers."""
    assert got.tokens == expected.tokens, case
    assert got.finish is expected.finish, case
    wanted = len(got.tokens) if case.sampling.top_logprobs else 0
    assert [len(entries) for entries in got.top_logprobs] == [case.sampling.top_logprobs] * wanted
    assert_told_alike(got, expected, TOLERANCE)


@pytest.mark.parametrize("seed", range(3))
def test_sessions_that_come_and_go_answer_as_if_alone(decoder: Decoder, seed: int) -> None:
    rng = random.Random(seed)
    cases = random_cases(rng)
    for case in cases:
        case.truth = alone(decoder, case)
        assert_same(case.truth, naive_answer(decoder.target, case.prompt, case.sampling, case.seed), case)
    cancelled = run_together(decoder, cases, rng)
    done = [case for case in cases if case.number not in cancelled]
    for case in done:
        assert_same(case.got, case.truth, case)
    # It did what it is for: some left, most stayed, and trees were accepted.
    assert 0 < len(cancelled) < SESSIONS // 2
    assert any(EOS in case.got.tokens for case in cases)
