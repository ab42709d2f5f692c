"""Tokens to text, one token at a time: the pieces joined are `tokenizer.decode(ids, skip_special_tokens=True)`.

A piece never holds a part of a character, and never text that a later token could change.
"""

from __future__ import annotations

import codecs
import json
import re
from typing import Protocol

from tokenizers import Tokenizer

REPLACEMENT = "\ufffd"


class Detokenizer(Protocol):
    """Incremental decoding of one answer."""

    def push(self, token_id: int) -> str:
        """Text that is final now that this token follows the ones before."""
        ...

    def finish(self) -> str:
        """The rest, with U+FFFD where bytes make no character."""
        ...


class Vocabulary:
    """What detokenisation needs to know of a tokenizer, read once and shared by all answers."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        decoder = json.loads(tokenizer.to_str()).get("decoder") or {}
        self.byte_level = decoder.get("type") == "ByteLevel"
        self.byte_fallback = '"ByteFallback"' in json.dumps(decoder)
        self._special = {i for i, token in tokenizer.get_added_tokens_decoder().items() if token.special}
        self._bytes: dict[int, bytes] = {}

    def token(self, token_id: int) -> str | None:
        """The token's string; None when it leaves no text: a special token, or an id without a token."""
        return None if token_id in self._special else self.tokenizer.id_to_token(token_id)

    def token_bytes(self, token_id: int) -> bytes:
        """Bytes that the token stands for under a byte-level decoder."""
        if token_id not in self._bytes:
            self._bytes[token_id] = _byte_level_bytes(self.token(token_id) or "")
        return self._bytes[token_id]

    def detokenizer(self) -> Detokenizer:
        """For a new answer."""
        return ByteLevelText(self) if self.byte_level else WindowText(self)


class ByteLevelText:
    """For byte-level vocabularies (Llama 3, Qwen, SmolLM2): tokens are bytes, text is their UTF-8 decoding."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        return self._utf8.decode(self._vocabulary.token_bytes(token_id))

    def finish(self) -> str:
        return self._utf8.decode(b"", final=True)


class WindowText:
    """For any other decoder: decodes a window that starts one token before the first whose text is not out.

    The token before is there because some decoders treat the first token of a text differently. A run of
    byte-fallback tokens is decoded as a whole, valid or not, so its text waits for the token after it.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._ids: list[int] = []
        self._sent = 0  # characters of the window's text that are out

    def push(self, token_id: int) -> str:
        token = self._vocabulary.token(token_id)
        if token is None:
            return ""
        self._ids.append(token_id)
        if self._vocabulary.byte_fallback and re.fullmatch(r"<0x[0-9A-Fa-f]{2}>", token):
            return ""
        text = self._decode()
        if text.endswith(REPLACEMENT):
            return ""
        new = text[self._sent :]
        self._ids = [token_id]
        self._sent = len(self._decode())
        return new

    def finish(self) -> str:
        new = self._decode()[self._sent :]
        self._ids, self._sent = [], 0
        return new

    def _decode(self) -> str:
        return self._vocabulary.tokenizer.decode(self._ids, skip_special_tokens=True)


def _byte_alphabet() -> dict[str, int]:
    """The printable character that stands for each byte in byte-level vocabularies (GPT-2's table), reversed."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {chr(byte): byte for byte in printable}
    others = [byte for byte in range(256) if byte not in set(printable)]
    return table | {chr(256 + index): byte for index, byte in enumerate(others)}


_BYTE_OF = _byte_alphabet()


def _byte_level_bytes(token: str) -> bytes:
    # An added token with a character outside the alphabet is text as it is, as in the tokenizers library.
    if all(character in _BYTE_OF for character in token):
        return bytes(_BYTE_OF[character] for character in token)
    return token.encode()
