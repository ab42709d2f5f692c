"""Every way for an answer to end, at every offset of a committed span, against the plain answer cut by hand."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from dartspec.services.common.types import Sampling
from dartspec.services.verifier.admission import Admission
from dartspec.services.verifier.decoder import Decoder
from dartspec.services.verifier.messages import Finish, Open
from dartspec.services.verifier.session import Session

from .driver import IDLE, FakeOwner, chain, gauges, running
from .naive_decoding import Answered, assert_told_alike, naive_answer
from .tiny import CONTEXT, EOS, MAX_NODES, VOCAB, answer, finished, open_session, plain, tiny_decoder

SPAN = 6
FREE = Sampling(1.0, 60, ignore_eos=True, top_logprobs=3)


@pytest.fixture(scope="module")
def decoder() -> Decoder:
    return tiny_decoder()


@pytest.fixture(scope="module")
def truth(decoder: Decoder) -> tuple[list[int], list[int], int]:
    """Prompt, plain answer without any stop, seed; the first tokens of the answer are distinct."""
    rng = random.Random(0)
    for seed in range(100):
        prompt = [rng.randrange(3, VOCAB) for _ in range(9)]
        tokens = plain(decoder, prompt, FREE, seed)
        if len(set(tokens[: SPAN + 3])) == SPAN + 3 and EOS not in tokens[: SPAN + 3]:
            return prompt, tokens, seed
    raise AssertionError("no answer with distinct tokens")


def cut_by_hand(tokens: list[int], stops: set[int], limit: int) -> tuple[list[int], Finish]:
    """The answer as it must be delivered. A stop that is also the last allowed token counts as a stop."""
    for index, token in enumerate(tokens[:limit]):
        if token in stops:
            return tokens[: index + 1], Finish.STOP
    return tokens[:limit], Finish.LENGTH


def check_span(decoder: Decoder, session: Session, truth: list[int], expected: list[int], finish: Finish) -> None:
    """One chain over the true continuation must end the answer where the plain reference ends it."""
    assert answer(session) == truth[:1]
    commit = decoder.verify(session, chain(truth[1 : 1 + SPAN + 3]))
    assert commit.finished
    assert answer(session) == expected
    assert commit.walk.tokens == expected[1:]
    assert commit.walk.accepted == len(expected) - 1
    assert len(commit.logprobs) == len(commit.margins) == len(commit.top_logprobs) == len(expected) - 1
    assert session.finish_of(session.tokens[-1]) is finish
    assert session.history.length == len(expected)
    assert session.history.generated.total() == len(expected)


@pytest.mark.parametrize("offset", range(1, SPAN + 1))
def test_a_stop_id_at_every_offset(decoder: Decoder, truth: tuple[list[int], list[int], int], offset: int) -> None:
    prompt, tokens, seed = truth
    sampling = replace(FREE, stop_token_ids=(0, tokens[offset]))
    session = open_session(decoder, prompt, sampling, seed)
    check_span(decoder, session, tokens, *cut_by_hand(tokens, {tokens[offset]}, 60))


@pytest.mark.parametrize("offset", range(1, SPAN + 1))
def test_max_tokens_at_every_offset(decoder: Decoder, truth: tuple[list[int], list[int], int], offset: int) -> None:
    prompt, tokens, seed = truth
    session = open_session(decoder, prompt, replace(FREE, max_tokens=offset + 1), seed)
    check_span(decoder, session, tokens, *cut_by_hand(tokens, set(), offset + 1))


@pytest.mark.parametrize("offset", range(1, SPAN + 1))
def test_the_context_limit_at_every_offset(
    decoder: Decoder, truth: tuple[list[int], list[int], int], offset: int
) -> None:
    prompt, tokens, seed = truth
    order = Open(1, prompt, len(prompt), FREE, seed, 0, "", False, True)
    session = Admission(1, 1 << 20, len(prompt) + offset + 1, MAX_NODES).open(order, decoder)
    decoder.prefill(session)
    check_span(decoder, session, tokens, *cut_by_hand(tokens, set(), offset + 1))


@pytest.mark.parametrize("most", range(2, SPAN + 2))
@pytest.mark.parametrize("room", range(2, SPAN + 2))
@pytest.mark.parametrize("stop", [None, 3])
def test_max_tokens_the_context_limit_and_a_stop_in_one_span(
    decoder: Decoder, truth: tuple[list[int], list[int], int], most: int, room: int, stop: int | None
) -> None:
    prompt, tokens, seed = truth
    stops = () if stop is None else (tokens[stop],)
    order = Open(1, prompt, len(prompt), replace(FREE, max_tokens=most, stop_token_ids=stops), seed, 0, "", False, True)
    session = Admission(1, 1 << 20, len(prompt) + room, MAX_NODES).open(order, decoder)
    decoder.prefill(session)
    check_span(decoder, session, tokens, *cut_by_hand(tokens, set(stops), min(most, room)))


@pytest.mark.parametrize("stop", range(1, SPAN + 1))
@pytest.mark.parametrize("limit", range(2, SPAN + 2))
def test_a_stop_and_a_limit_in_one_span(
    decoder: Decoder, truth: tuple[list[int], list[int], int], stop: int, limit: int
) -> None:
    prompt, tokens, seed = truth
    sampling = replace(FREE, max_tokens=limit, stop_token_ids=(tokens[stop],))
    session = open_session(decoder, prompt, sampling, seed)
    check_span(decoder, session, tokens, *cut_by_hand(tokens, {tokens[stop]}, limit))


@pytest.mark.parametrize("offset", range(1, SPAN + 1))
@pytest.mark.parametrize("ignore", [False, True])
def test_eos_at_every_offset(
    decoder: Decoder,
    truth: tuple[list[int], list[int], int],
    offset: int,
    ignore: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    prompt, tokens, seed = truth
    # Any of several EOS ids ends the answer.
    monkeypatch.setattr(decoder.target, "config", replace(decoder.target.config, eos_token_ids=(0, tokens[offset])))
    session = open_session(decoder, prompt, replace(FREE, ignore_eos=ignore), seed)
    if ignore:
        decoder.verify(session, chain(tokens[1 : SPAN + 1]))
        assert answer(session) == tokens[: SPAN + 2]
        assert not finished(session)
        return
    check_span(decoder, session, tokens, *cut_by_hand(tokens, {tokens[offset]}, 60))


def test_the_first_token_can_be_the_last(decoder: Decoder, truth: tuple[list[int], list[int], int]) -> None:
    prompt, tokens, seed = truth
    for sampling in (replace(FREE, max_tokens=1), replace(FREE, stop_token_ids=(tokens[0],))):
        session = open_session(decoder, prompt, sampling, seed)
        assert finished(session)
        assert answer(session) == tokens[:1]


@pytest.mark.parametrize("minimum", range(SPAN + 1))
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("stop", [EOS, 17])
def test_min_tokens_inside_a_span(decoder: Decoder, minimum: int, temperature: float, stop: int) -> None:
    # The stop is all but certain as soon as it is allowed.
    sampling = Sampling(temperature, 40, min_tokens=minimum, logit_bias={stop: 300.0}, stop_token_ids=(17,))
    prompt, seed = [4, 5, 6], 3
    reference = plain(decoder, prompt, sampling, seed)
    assert len(reference) == minimum + 1
    assert reference[-1] == stop
    assert not {EOS, 17} & set(reference[:-1])
    if minimum == 0:
        return
    session = open_session(decoder, prompt, sampling, seed)
    commit = decoder.verify(session, chain([*reference[1:], stop, stop]))
    assert answer(session) == reference
    assert commit.finished


@pytest.mark.parametrize("committed", range(SPAN))
def test_a_resumed_answer_counts_what_was_committed_elsewhere(
    decoder: Decoder, truth: tuple[list[int], list[int], int], committed: int
) -> None:
    prompt, tokens, seed = truth
    sampling = replace(FREE, max_tokens=SPAN + 1)
    session = open_session(decoder, prompt, sampling, seed, committed=tokens[:committed])
    assert answer(session) == tokens[: committed + 1]
    if not finished(session):
        decoder.verify(session, chain(tokens[committed + 1 : committed + 9]))
    assert answer(session) == tokens[: SPAN + 1]
    assert finished(session)


# The same once more through the engine, where trees are cut and events are made.


def run(
    owner: FakeOwner,
    session: int,
    prompt: list[int],
    sampling: Sampling,
    seed: int,
    truth: list[int],
    room: int = CONTEXT,
    plainly: bool = False,
) -> Answered:
    """Drive an answer with chains over the truth; check each event against what has been delivered."""
    expected, finish = cut_by_hand(truth, set(sampling.stop_token_ids), min(sampling.max_tokens, room))
    owner.open(session, prompt, sampling, seed, plain_only=True)
    delivered: list[int] = []
    answer = Answered()
    rounds = accepted = 0
    while True:
        event = owner.round(session)
        delivered += event.token_ids
        answer.logprobs += event.logprobs
        answer.top_logprobs += event.top_logprobs
        accepted += event.accepted
        assert event.n == len(prompt) + len(delivered) - 1
        assert len(event.logprobs) == len(event.margins) == len(event.top_logprobs) == len(event.token_ids)
        assert event.nodes_verified <= event.nodes_offered
        if event.finish is not None:
            break
        following = truth[len(delivered) : len(delivered) + (0 if plainly else 4)]
        owner.verify(session, event.n, chain(following))
        rounds += 1
    assert delivered == expected
    assert event.finish is finish
    assert len(delivered) == 1 + rounds + accepted - (event.accepted == len(event.token_ids))
    answer.tokens, answer.finish = delivered, event.finish
    return answer


@pytest.mark.parametrize("offset", range(11))
def test_the_engine_ends_answers_where_the_plain_reference_does(
    decoder: Decoder, truth: tuple[list[int], list[int], int], offset: int
) -> None:
    prompt, tokens, seed = truth
    cases = [replace(FREE, stop_token_ids=(tokens[offset],)), replace(FREE, max_tokens=offset + 1)]
    with running(decoder) as engine:
        owner = FakeOwner(engine)
        for session, sampling in enumerate(cases, start=1):
            run(owner, session, prompt, sampling, seed, tokens)
        assert owner.nothing_more()
        assert gauges(engine) == IDLE
        lengths = [len(cut_by_hand(tokens, set(s.stop_token_ids), s.max_tokens)[0]) for s in cases]
        assert engine.load.committed_tokens == sum(lengths)


@pytest.mark.parametrize("room", range(1, 11))
def test_what_is_told_of_an_answer_that_is_cut_is_what_plain_decoding_tells(
    decoder: Decoder, truth: tuple[list[int], list[int], int], room: int
) -> None:
    prompt, tokens, seed = truth
    with running(decoder, context=len(prompt) + room) as engine:
        owner, session = FakeOwner(engine), 0
        for sampling in (
            FREE,
            replace(FREE, max_tokens=min(room, 5)),
            replace(FREE, max_tokens=7, stop_token_ids=(tokens[4],)),
        ):
            case = (prompt, sampling, seed, tokens, room)
            plainly, in_spans = run(owner, session + 1, *case, plainly=True), run(owner, session + 2, *case)
            by_definition = naive_answer(decoder.target, prompt, sampling, seed, context=len(prompt) + room)
            session += 2
            for answer in (plainly, in_spans):
                assert (answer.tokens, answer.finish) == (by_definition.tokens, by_definition.finish)
                assert_told_alike(answer, by_definition)
        assert gauges(engine) == IDLE


@pytest.mark.parametrize("room", range(1, 9))
def test_the_engine_ends_at_the_context_limit(
    decoder: Decoder, truth: tuple[list[int], list[int], int], room: int
) -> None:
    prompt, tokens, seed = truth
    for mode in ("decode", "verify"):
        with running(decoder, context=len(prompt) + room) as engine:
            owner = FakeOwner(engine)
            owner.open(1, prompt, FREE, seed)
            event = owner.round(1)
            delivered = event.token_ids
            if event.finish is None and mode == "decode":
                owner.decode(1, event.n, 100)
            while event.finish is None:
                if mode == "verify":
                    owner.verify(1, event.n, chain(tokens[len(delivered) : len(delivered) + 3]))
                event = owner.round(1)
                delivered = [*delivered, *event.token_ids]
            assert event.finish is Finish.LENGTH
            assert delivered == tokens[:room]
            assert gauges(engine) == IDLE


def test_a_prompt_that_fills_the_context_is_refused_not_crashed(decoder: Decoder) -> None:
    with running(decoder) as engine:
        owner = FakeOwner(engine)
        for session, length in ((1, CONTEXT), (2, CONTEXT + 1)):
            owner.open(session, [5] * length)
            failed = owner.failure(session)
            assert (failed.error.field, failed.committed) == ("open.token_ids", 0)
            assert f"{length} tokens leave no room in a context of {CONTEXT}" in failed.error.message
        owner.open(3, [5] * (CONTEXT - 1))
        assert owner.round(3).finish is Finish.LENGTH


def test_a_tree_beyond_the_limit_is_cut_to_what_can_be_committed(
    decoder: Decoder, truth: tuple[list[int], list[int], int]
) -> None:
    prompt, tokens, seed = truth
    with running(decoder) as engine:
        owner = FakeOwner(engine)
        owner.open(1, prompt, replace(FREE, max_tokens=3), seed)
        owner.verify(1, owner.round(1).n, chain(tokens[1:9]))
        event = owner.round(1)
        assert (event.nodes_offered, event.nodes_verified, event.accepted) == (8, 2, 2)
        assert event.token_ids == tokens[1:3]
