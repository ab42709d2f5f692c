"""Delivery is a function of the tokens alone: the size of the spans changes nothing."""

from __future__ import annotations

import random

import pytest

from dartspec.gateway.detokenize import Vocabulary
from dartspec.gateway.stream import AnswerStream
from tests.fakes import byte_tokenizer

VOCABULARY = Vocabulary(byte_tokenizer())
TEXT = "hello wörld € 😀 abc hello"


def reference(ids: list[int], stops: list[str]) -> tuple[list[int], str, str]:
    """Token by token, by decoding the whole prefix each time."""
    for end in range(1, len(ids) + 1):
        text = VOCABULARY.tokenizer.decode(ids[:end], skip_special_tokens=True)
        before = VOCABULARY.tokenizer.decode(ids[: end - 1], skip_special_tokens=True)
        found = [(text.find(stop) + len(stop), -len(stop), stop) for stop in stops if stop in text]
        if found:
            stop = min(found)[2]
            assert stop not in before
            return ids[:end], text[: text.find(stop)], stop
    return ids, VOCABULARY.tokenizer.decode(ids, skip_special_tokens=True), ""


def deliver(ids: list[int], stops: list[str], rng: random.Random) -> tuple[list[int], str, str]:
    stream = AnswerStream(VOCABULARY.detokenizer(), stops)
    out, text, at = [], "", 0
    while at < len(ids):
        span = ids[at : at + rng.randrange(1, 7)]
        at += len(span)
        piece = stream.push(span, last=at == len(ids))
        out += span[: piece.tokens]
        text += piece.text
        if piece.stop:
            return out, text, piece.stop
    return out, text, ""


@pytest.mark.parametrize("seed", range(10))
def test_any_stop_anywhere_in_any_span(seed: int) -> None:
    rng = random.Random(seed)
    ids = VOCABULARY.tokenizer.encode(TEXT).ids
    for _ in range(200):
        stops = []
        for _ in range(rng.randrange(4)):
            start = rng.randrange(len(TEXT))
            stops.append(TEXT[start : start + rng.randrange(1, 6)])
        assert deliver(ids, stops, rng) == reference(ids, stops)


def test_replay_takes_text_without_giving_it_out() -> None:
    ids = VOCABULARY.tokenizer.encode("ab€cd").ids
    for cut in range(len(ids) + 1):
        first = AnswerStream(VOCABULARY.detokenizer(), ["cx"])
        before = first.push(ids[:cut], last=False).text
        second = AnswerStream(VOCABULARY.detokenizer(), ["cx"])
        assert second.replay(ids[:cut]) == (cut, "")
        after = second.push(ids[cut:], last=True).text
        assert before + after == "ab€cd"


def test_replay_says_where_a_stop_was_complete() -> None:
    ids = VOCABULARY.tokenizer.encode("xyzw").ids
    assert AnswerStream(VOCABULARY.detokenizer(), ["yz"]).replay(ids) == (3, "yz")


def test_an_unfinished_character_comes_out_at_the_end() -> None:
    ids = VOCABULARY.tokenizer.encode("a€").ids[:-1]
    piece = AnswerStream(VOCABULARY.detokenizer(), []).push(ids, last=True)
    assert piece.text == VOCABULARY.tokenizer.decode(ids) == "a\ufffd"
