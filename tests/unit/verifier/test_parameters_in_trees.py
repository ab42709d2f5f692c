"""Every sampling parameter inside trees, each by itself, against decoding one token after the other by definition.

Each must bite: without it the answer is another one.
"""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from dartspec.services.common.types import Sampling, Tree
from dartspec.services.verifier.decoder import Decoder

from .driver import chain
from .naive_decoding import Answered, assert_told_alike, naive_answer
from .tiny import EOS, VOCAB, finished, open_session, random_tree, tiny_decoder

LENGTH = 40
PROMPT = [5, 6, 7, 7, 8, 9, 30, 31]
SEED = 11
DRAWN = Sampling(1.0, LENGTH, ignore_eos=True)
GREEDY = replace(DRAWN, temperature=0.0)
ALL = tuple(range(VOCAB))

# Name: (with the parameter, without it).
CASES = {
    "temperature": (replace(DRAWN, temperature=0.6), DRAWN),
    "greedy": (GREEDY, DRAWN),
    "top_k": (replace(DRAWN, top_k=4), DRAWN),
    "top_k 1": (replace(DRAWN, top_k=1), DRAWN),
    "top_p": (replace(DRAWN, top_p=0.6), DRAWN),
    "min_p": (replace(DRAWN, min_p=0.2), DRAWN),
    "repetition": (replace(DRAWN, repetition_penalty=1.5), DRAWN),
    "repetition, greedy": (replace(GREEDY, repetition_penalty=1.3), GREEDY),
    "presence": (replace(DRAWN, presence_penalty=1.5), DRAWN),
    "presence, greedy": (replace(GREEDY, presence_penalty=2.0), GREEDY),
    "frequency": (replace(DRAWN, frequency_penalty=0.8), DRAWN),
    "frequency, greedy": (replace(GREEDY, frequency_penalty=0.7), GREEDY),
    "rewarded repetition": (replace(DRAWN, frequency_penalty=-0.3), DRAWN),
    "bias": (replace(DRAWN, logit_bias={20: 3.0, 21: 3.0, 22: -5.0}), DRAWN),
    "allowed": (replace(DRAWN, allowed_token_ids=ALL[10:30]), DRAWN),
    "allowed, greedy": (replace(GREEDY, allowed_token_ids=ALL[10:30]), GREEDY),
    "banned": (replace(DRAWN, banned_token_ids=ALL[10:30]), DRAWN),
    "allowed and banned": (replace(DRAWN, allowed_token_ids=ALL[10:30], banned_token_ids=ALL[5:20]), DRAWN),
    "min_tokens": (
        replace(DRAWN, ignore_eos=False, logit_bias={EOS: 9.0}, min_tokens=17),
        replace(DRAWN, ignore_eos=False, logit_bias={EOS: 9.0}),
    ),
    "min_tokens and a stop": (
        replace(GREEDY, logit_bias={33: 50.0}, stop_token_ids=(33,), min_tokens=12),
        replace(GREEDY, logit_bias={33: 50.0}, stop_token_ids=(33,)),
    ),
    "ignore_eos": (replace(DRAWN, logit_bias={EOS: 4.0}), replace(DRAWN, logit_bias={EOS: 4.0}, ignore_eos=False)),
}


@pytest.fixture(scope="module")
def decoder() -> Decoder:
    return tiny_decoder()


def in_trees(decoder: Decoder, sampling: Sampling, seed: int, truth: list[int], rng: random.Random) -> Answered:
    """The answer in as few rounds as there are right chains, with random trees in between."""
    session = open_session(decoder, PROMPT, sampling, seed)
    got = Answered([session.tokens[-1]], [], [])
    rounds = 0
    while not finished(session):
        following = truth[len(got.tokens) : len(got.tokens) + 9]
        tree: Tree = chain(following) if rng.random() < 0.5 and following else random_tree(rng, following)
        commit = decoder.verify(session, tree)
        got.tokens += commit.walk.tokens
        got.logprobs += commit.logprobs
        got.top_logprobs += commit.top_logprobs
        rounds += 1
    got.finish = session.finish_of(session.tokens[-1])
    assert len(truth) < 5 or rounds < len(truth) / 1.5  # most tokens were chosen at nodes below the root
    return got


@pytest.mark.parametrize("name", CASES)
def test_a_parameter_means_the_same_at_every_node(decoder: Decoder, name: str) -> None:
    sampling, without = CASES[name]
    sampling = replace(sampling, top_logprobs=7)
    truth = naive_answer(decoder.target, PROMPT, sampling, SEED)
    assert truth.tokens != naive_answer(decoder.target, PROMPT, without, SEED).tokens, "the parameter changes nothing"
    for attempt in range(4):
        got = in_trees(decoder, sampling, SEED, truth.tokens, random.Random(attempt))
        assert (got.tokens, got.finish) == (truth.tokens, truth.finish)
        # Told under the raw logits, whatever the parameters do to them; the first token came with the prompt.
        assert_told_alike(got, Answered([], truth.logprobs[1:], truth.top_logprobs[1:]))


def test_a_seed_is_the_answers_own(decoder: Decoder) -> None:
    truths = [naive_answer(decoder.target, PROMPT, DRAWN, seed).tokens for seed in (0, 1, 2**32, 2**64 - 1)]
    assert len(set(map(tuple, truths))) == len(truths)
    for seed, truth in zip((0, 1, 2**32, 2**64 - 1), truths, strict=True):
        assert in_trees(decoder, DRAWN, seed, truth, random.Random(seed)).tokens == truth


@pytest.mark.parametrize("asked", [0, 1, 20])
def test_top_logprobs_change_no_token(decoder: Decoder, asked: int) -> None:
    truth = naive_answer(decoder.target, PROMPT, DRAWN, SEED).tokens
    got = in_trees(decoder, replace(DRAWN, top_logprobs=asked), SEED, truth, random.Random(1))
    assert got.tokens == truth
    assert [len(entries) for entries in got.top_logprobs] == [asked] * (len(truth) - 1 if asked else 0)
    for token, value, entries in zip(got.tokens[1:], got.logprobs, got.top_logprobs, strict=bool(asked)):
        assert dict(entries).get(token, value) == value  # the chosen token is told the same in both places
