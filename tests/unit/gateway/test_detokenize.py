"""Pieces joined equal the whole decode, for every kind of decoder and any token order."""

from __future__ import annotations

import random

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models

from dartspec.gateway.detokenize import ByteLevelText, Vocabulary, WindowText
from tests.fakes import byte_tokenizer


def fallback_tokenizer() -> Tokenizer:
    """As SentencePiece models of the Llama 2 kind: ▁ for spaces, bytes as <0xNN>, the first space stripped."""
    words = ["<unk>", "▁hello", "▁wor", "ld", "▁", "é", "€", "▁�", ".", *(f"<0x{byte:02X}>" for byte in range(256))]
    tokenizer = Tokenizer(models.WordLevel({word: index for index, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens([AddedToken("</s>", special=True)])
    return tokenizer


def word_tokenizer() -> Tokenizer:
    """Whole words without a decoder: joined with spaces."""
    return Tokenizer(models.WordLevel({"a": 0, "bc": 1, "d,": 2}, unk_token="a"))


def joined(vocabulary: Vocabulary, ids: list[int]) -> str:
    detokenizer = vocabulary.detokenizer()
    return "".join(detokenizer.push(token) for token in ids) + detokenizer.finish()


@pytest.mark.parametrize("make", [byte_tokenizer, fallback_tokenizer, word_tokenizer])
def test_random_tokens_equal_the_whole_decode(make: object) -> None:
    tokenizer = make()  # type: ignore[operator]
    vocabulary = Vocabulary(tokenizer)
    size = tokenizer.get_vocab_size(with_added_tokens=True)
    rng = random.Random(5)
    for _ in range(400):
        # Two ids more than there are: a model may have more rows than its tokenizer has tokens.
        ids = [rng.randrange(size + 2) for _ in range(rng.randrange(1, 30))]
        assert joined(vocabulary, ids) == tokenizer.decode(ids, skip_special_tokens=True)


@pytest.mark.parametrize("make", [byte_tokenizer, fallback_tokenizer])
def test_random_bytes_near_utf8_equal_the_whole_decode(make: object) -> None:
    tokenizer = make()  # type: ignore[operator]
    vocabulary = Vocabulary(tokenizer)
    likely = [
        0x41,
        0x80,
        0xBF,
        0xC2,
        0xE2,
        0x82,
        0xAC,
        0xED,
        0xA0,
        0xF0,
        0x9F,
        0x98,
        0x80,
        0xF4,
        0x90,
        0xC0,
        0xFF,
        0xE0,
    ]
    byte_ids = {}
    for name, token_id in tokenizer.get_vocab().items():
        if vocabulary.byte_level:
            data = vocabulary.token_bytes(token_id)
            if len(data) == 1:
                byte_ids[data[0]] = token_id
        elif name.startswith("<0x"):
            byte_ids[int(name[3:5], 16)] = token_id
    others = [token_id for token_id in range(tokenizer.get_vocab_size()) if token_id not in byte_ids.values()]
    rng = random.Random(6)
    for _ in range(2000):
        ids = [
            byte_ids[rng.choice(likely)] if rng.random() < 0.8 else rng.choice(others)
            for _ in range(rng.randrange(1, 12))
        ]
        assert joined(vocabulary, ids) == tokenizer.decode(ids, skip_special_tokens=True)


def test_both_ways_agree_on_a_byte_level_vocabulary() -> None:
    vocabulary = Vocabulary(byte_tokenizer())
    ids = vocabulary.tokenizer.encode("hello wörld € 😀 <think>hi").ids
    window, bytewise = WindowText(vocabulary), ByteLevelText(vocabulary)
    assert isinstance(vocabulary.detokenizer(), ByteLevelText)
    for token in ids:
        assert window.push(token) == bytewise.push(token)
    assert window.finish() == bytewise.finish() == ""


def test_a_character_comes_with_its_last_byte() -> None:
    vocabulary = Vocabulary(byte_tokenizer())
    detokenizer = vocabulary.detokenizer()
    ids = vocabulary.tokenizer.encode("€!").ids
    assert [detokenizer.push(token) for token in ids] == ["", "", "€", "!"]


def test_special_tokens_leave_no_text_and_do_not_split_characters() -> None:
    vocabulary = Vocabulary(byte_tokenizer())
    euro = vocabulary.tokenizer.encode("€").ids
    eos = vocabulary.tokenizer.token_to_id("<eos>")
    assert joined(vocabulary, [euro[0], eos, *euro[1:], eos]) == "€"


def test_first_space_is_stripped_once_only() -> None:
    tokenizer = fallback_tokenizer()
    vocabulary = Vocabulary(tokenizer)
    detokenizer = vocabulary.detokenizer()
    hello, eos = tokenizer.token_to_id("▁hello"), tokenizer.token_to_id("</s>")
    assert [detokenizer.push(token) for token in [hello, eos, hello, hello]] == ["hello", "", " hello", " hello"]


def test_a_run_of_fallback_bytes_waits_for_its_end() -> None:
    tokenizer = fallback_tokenizer()
    detokenizer = Vocabulary(tokenizer).detokenizer()
    ids = [tokenizer.token_to_id(name) for name in ("<0xF0>", "<0x9F>", "<0x98>", "<0x80>", ".")]
    assert [detokenizer.push(token) for token in ids] == ["", "", "", "", "😀."]
