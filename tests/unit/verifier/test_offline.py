"""Many answers at once are those of one at a time, in any width and with little memory, and leave nothing behind."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from dartspec.services.common.errors import InvalidArgument
from dartspec.services.common.types import Sampling
from dartspec.services.verifier.admission import Admission
from dartspec.services.verifier.budget import FixedBudget
from dartspec.services.verifier.decoder import Decoder
from dartspec.services.verifier.engine import Engine
from dartspec.services.verifier.kv_cache import SLOT_BLOCK
from dartspec.services.verifier.messages import Finish
from dartspec.services.verifier.offline import OfflineStream, Question

from .tiny import CONTEXT, EOS, VOCAB, plain, tiny_decoder

RNG = random.Random(3)
QUESTIONS = [
    Question(
        [RNG.randrange(3, VOCAB) for _ in range(RNG.randint(1, 90))],
        Sampling((0.0, 0.8, 1.5)[number % 3], max_tokens=RNG.choice((1, 4, 16))),
        seed=1000 + number,
    )
    for number in range(12)
]


@pytest.fixture(scope="module")
def decoder() -> Decoder:
    return tiny_decoder()


@pytest.fixture(scope="module")
def expected(decoder: Decoder) -> list[list[int]]:
    return [plain(decoder, question.token_ids, question.sampling, question.seed) for question in QUESTIONS]


@pytest.fixture
def engine(decoder: Decoder) -> Iterator[Engine]:
    admission = Admission(4, 3 * SLOT_BLOCK, CONTEXT, 0)  # room for three answers
    engine = Engine(decoder, admission, FixedBudget(0), idle_seconds=300.0)
    engine.start()
    yield engine
    engine.stop()


@pytest.mark.parametrize("width", [1, 5])
def test_answers_are_those_of_plain_decoding(engine: Engine, expected: list[list[int]], width: int) -> None:
    answers = list(OfflineStream(engine).answers(iter(QUESTIONS), width))
    assert {answer.question: answer.token_ids for answer in answers} == dict(enumerate(expected))
    for answer in answers:
        assert answer.finish is (Finish.STOP if answer.token_ids[-1] == EOS else Finish.LENGTH)
    assert {answer.finish for answer in answers} == {Finish.STOP, Finish.LENGTH}
    assert (engine.admission.sessions, engine.admission.kv_used) == (0, 0)


def test_questions_are_taken_as_there_is_room(engine: Engine) -> None:
    taken: list[int] = []

    def asked() -> Iterator[Question]:
        for number, question in enumerate(QUESTIONS):
            taken.append(number)
            yield question

    for ended, _ in enumerate(OfflineStream(engine).answers(asked(), width=2), 1):
        assert len(taken) <= ended + 2


def test_who_stops_listening_leaves_an_engine_that_answers_others(engine: Engine, expected: list[list[int]]) -> None:
    stream = OfflineStream(engine)
    answers = stream.answers(iter(QUESTIONS), width=3)
    next(answers)
    answers.close()
    assert engine.call(lambda: engine.admission.sessions).result() == 0
    again = list(stream.answers(QUESTIONS[:4], width=2))
    assert sorted((answer.question, answer.token_ids) for answer in again) == list(enumerate(expected[:4]))


def test_a_question_that_can_never_be_answered_ends_the_rest(engine: Engine) -> None:
    wrong = Question([VOCAB], Sampling(0.0, max_tokens=3), 0)
    with pytest.raises(InvalidArgument, match=f"id {VOCAB} at index 0 is not in the vocabulary"):
        list(OfflineStream(engine).answers([*QUESTIONS[:5], wrong, *QUESTIONS[5:]], width=3))
    assert engine.call(lambda: engine.admission.sessions).result() == 0
