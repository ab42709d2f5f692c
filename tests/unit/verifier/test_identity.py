"""Whatever the trees, the tokens are those of plain decoding: a tiny model in float32, with no exception."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
import torch

from dartspec.services.common.types import Sampling, Tree
from dartspec.services.draft.propose import DraftInput
from dartspec.services.verifier.decoder import Decoder, Work, best_chain
from dartspec.services.verifier.features import WAITING_ROWS
from dartspec.services.verifier.session import Session
from dartspec.services.verifier.tree import check_tree

from .tiny import EOS, VOCAB, answer, drafted, finished, open_session, plain, random_tree, tiny_decoder

LENGTH = 120

SAMPLINGS = {
    "greedy": Sampling(0.0, LENGTH),
    "cool": Sampling(0.7, LENGTH),
    "hot": Sampling(1.3, LENGTH),
    "top_k": Sampling(1.0, LENGTH, top_k=5),
    "top_p": Sampling(0.9, LENGTH, top_p=0.8),
    "min_p": Sampling(1.2, LENGTH, min_p=0.1),
    "all_filters": Sampling(1.1, LENGTH, top_k=20, top_p=0.9, min_p=0.02),
    "repetition": Sampling(0.8, LENGTH, repetition_penalty=1.4),
    "greedy_penalties": Sampling(0.0, LENGTH, repetition_penalty=1.2, presence_penalty=0.7, frequency_penalty=0.4),
    "everything": Sampling(
        0.9,
        LENGTH,
        top_k=30,
        top_p=0.95,
        min_p=0.01,
        repetition_penalty=1.1,
        presence_penalty=0.5,
        frequency_penalty=0.3,
        logit_bias={7: 1.5, EOS: -1.0},
        banned_token_ids=(9, 10),
        min_tokens=20,
    ),
    "allowed": Sampling(1.0, LENGTH, allowed_token_ids=tuple(range(3, 30)), frequency_penalty=1.0),
}


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def decoder() -> Decoder:
    return tiny_decoder()


def prompt_of(rng: random.Random) -> list[int]:
    return [rng.randrange(3, VOCAB) for _ in range(rng.randint(1, 30))]


def advance(decoder: Decoder, session: Session, reference: list[int], rng: random.Random) -> None:
    """One round with a random tree around what is known to come."""
    done = len(answer(session))
    tree = random_tree(rng, reference[done:])
    check_tree(tree, VOCAB)
    decoder.verify(session, tree)


@pytest.mark.parametrize("name", SAMPLINGS)
def test_random_trees_change_nothing(decoder: Decoder, name: str) -> None:
    rng = random.Random(name)
    sampling = SAMPLINGS[name]
    rounds = tokens = 0
    for seed in range(3):
        prompt = prompt_of(rng)
        reference = plain(decoder, prompt, sampling, seed)
        session = open_session(decoder, prompt, sampling, seed)
        while not finished(session):
            advance(decoder, session, reference, rng)
            rounds += 1
        assert answer(session) == reference
        tokens += len(reference)
    # The trees did hold what the target chose, else this would prove little.
    assert tokens > 1.3 * rounds


def test_sessions_of_different_parameters_do_not_mix(decoder: Decoder) -> None:
    rng = random.Random(1)
    cases = [(prompt_of(rng), sampling, seed) for seed, sampling in enumerate(SAMPLINGS.values())]
    references = [plain(decoder, *case) for case in cases]
    sessions = [open_session(decoder, *case) for case in cases]
    while running := [i for i, session in enumerate(sessions) if not finished(session)]:
        i = rng.choice(running)
        advance(decoder, sessions[i], references[i], rng)
    assert [answer(session) for session in sessions] == references


@pytest.mark.parametrize("name", ["greedy", "hot", "everything"])
def test_resuming_anywhere_changes_nothing(decoder: Decoder, name: str) -> None:
    rng = random.Random(2)
    sampling = SAMPLINGS[name]
    prompt = prompt_of(rng)
    reference = plain(decoder, prompt, sampling, seed=5)
    for cut in range(0, len(reference) - 1, 7):
        session = open_session(decoder, prompt, sampling, 5, committed=reference[:cut])
        while not finished(session):
            advance(decoder, session, reference, rng)
        assert answer(session) == reference


@pytest.mark.parametrize("name", ["greedy", "hot"])
def test_the_heads_own_chain_changes_nothing(decoder: Decoder, name: str) -> None:
    rng = random.Random(3)
    sampling = SAMPLINGS[name]
    prompt = prompt_of(rng)
    reference = plain(decoder, prompt, sampling, seed=6)
    session = open_session(decoder, prompt, sampling, 6, drafts=True)
    while not finished(session):
        # Plain stretches in between let the head's cache lag.
        if rng.random() < 0.3:
            decoder.verify(session, Tree.empty())
        else:
            decoder.verify(session, best_chain(drafted(decoder, session), 8, session.enders))
    assert answer(session) == reference


def test_proposals_do_not_depend_on_how_the_prefix_was_committed(decoder: Decoder) -> None:
    rng = random.Random(4)
    sampling = Sampling(1.3, LENGTH, ignore_eos=True)
    prompt = prompt_of(rng)
    reference = plain(decoder, prompt, sampling, seed=7)
    one_by_one = open_session(decoder, prompt, sampling, 7, drafts=True)
    in_trees = open_session(decoder, prompt, sampling, 7, drafts=True)
    compared = 0
    while True:
        advance(decoder, in_trees, reference, rng)
        if finished(in_trees):
            break
        while one_by_one.n < in_trees.n:
            decoder.verify(one_by_one, Tree.empty())
        committed = answer(in_trees)[:-1]
        fresh = open_session(
            decoder, prompt, Sampling(1.3, LENGTH + 1, ignore_eos=True), 7, committed=committed, drafts=True
        )
        fresh.tokens[-1] = in_trees.tokens[-1]
        expected = drafted(decoder, fresh)
        # The one drafts after every round, the other now and then.
        for session in (in_trees, one_by_one) if rng.random() < 0.3 else (in_trees,):
            got = drafted(decoder, session)
            for values, want in zip(got.logprobs, expected.logprobs, strict=True):
                np.testing.assert_allclose(values, want, atol=1e-4)
            compared += 1
    assert compared > 30


def test_a_long_plain_stretch_leaves_the_next_draft_as_good(decoder: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    prompt = prompt_of(random.Random(6))
    drafts = []
    for limit in (3, WAITING_ROWS):
        monkeypatch.setattr("dartspec.services.verifier.commit.WAITING_ROWS", limit)
        session = open_session(decoder, prompt, SAMPLINGS["greedy_penalties"], drafts=True)
        for _ in range(12):  # with a limit of 3 the last step is one that hands features over
            decoder.verify(session, Tree.empty())
            assert session.lag() <= limit
        drafts.append(drafted(decoder, session))
    for values, want in zip(drafts[0].logprobs, drafts[1].logprobs, strict=True):
        np.testing.assert_allclose(values, want, atol=1e-4)


def test_features_are_handed_over_together(decoder: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    """When one session has as many as may wait, those that have more than half as many go along."""
    monkeypatch.setattr("dartspec.services.verifier.commit.WAITING_ROWS", 6)
    assert decoder.proposer is not None
    calls: list[int] = []
    append = decoder.proposer.append

    def counted(inputs: Sequence[DraftInput]) -> None:
        calls.append(len(inputs))
        append(inputs)

    monkeypatch.setattr(decoder.proposer, "append", counted)
    sampling = SAMPLINGS["greedy_penalties"]
    sessions = [open_session(decoder, range(5, 5 + length), sampling, drafts=True) for length in (5, 3, 1)]
    lags = []
    for _ in range(3):
        decoder.step([Work(session, Tree.empty()) for session in sessions])
        lags.append([session.lag() for session in sessions])
    # The second step brings one to 7, which is too many. The one with 5 goes along, the one with 3 does not.
    assert lags == [[6, 4, 2], [1, 1, 3], [2, 2, 4]]
    assert calls == [2]


def test_answers_differ_between_seeds_and_parameters(decoder: Decoder) -> None:
    prompt = prompt_of(random.Random(5))
    answers = {tuple(plain(decoder, prompt, SAMPLINGS["hot"], seed)) for seed in range(5)}
    assert len(answers) == 5
