"""Log-probabilities as that API shows them: one object a token for chats, parallel arrays for text completions."""

from __future__ import annotations

import codecs
import re
from collections.abc import Sequence
from typing import Any

from dartspec.gateway.detokenize import Vocabulary
from dartspec.gateway.types import Chunk
from dartspec.services.common.types import TopTokens

LOWEST = -9999.0  # JSON has no infinity
BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def token_bytes(vocabulary: Vocabulary, token_id: int) -> bytes:
    """What a token stands for by itself; a special token for its own name."""
    token = vocabulary.tokenizer.id_to_token(token_id) or ""
    if vocabulary.token(token_id) is None:
        return token.encode()
    if vocabulary.byte_level:
        return vocabulary.token_bytes(token_id)
    if vocabulary.byte_fallback and (match := BYTE_TOKEN.fullmatch(token)):
        return bytes.fromhex(match[1])
    return token.replace("▁", " ").encode()


class ChatLogprobs:
    """For chats."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary

    def show(self, chunk: Chunk) -> dict[str, Any]:
        """The chunk's tokens."""
        tops = [[self._token(*entry) for entry in top] for top in _tops(chunk)]
        chosen = zip(chunk.token_ids, chunk.logprobs, strict=True)
        tokens = [self._token(*entry) for entry in chosen]
        return {"content": [token | {"top_logprobs": top} for token, top in zip(tokens, tops, strict=True)]}

    def join(self, shown: list[dict[str, Any]]) -> dict[str, Any]:
        """Those of all chunks."""
        return {"content": [entry for part in shown for entry in part["content"]]}

    def _token(self, token_id: int, logprob: float) -> dict[str, Any]:
        data = token_bytes(self._vocabulary, token_id)
        return {"token": data.decode(errors="replace"), "logprob": max(logprob, LOWEST), "bytes": list(data)}


class TextLogprobs:
    """For text completions. An offset is the number of characters that were complete before the token."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._offset = 0

    def show(self, chunk: Chunk) -> dict[str, Any]:
        """The chunk's tokens, which follow those of the chunks before."""
        shown: dict[str, Any] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        for token_id, logprob, top in zip(chunk.token_ids, chunk.logprobs, _tops(chunk), strict=True):
            data = token_bytes(self._vocabulary, token_id)
            shown["tokens"].append(data.decode(errors="replace"))
            shown["token_logprobs"].append(max(logprob, LOWEST))
            shown["top_logprobs"].append(self._likeliest(((token_id, logprob), *top)))
            shown["text_offset"].append(self._offset)
            if self._vocabulary.token(token_id) is not None:  # others leave no text
                self._offset += len(self._utf8.decode(data))
        return shown if chunk.top_logprobs else {**shown, "top_logprobs": None}

    def join(self, shown: list[dict[str, Any]]) -> dict[str, Any]:
        """Those of all chunks."""
        names = ("tokens", "token_logprobs", "top_logprobs", "text_offset")
        joined = {name: [entry for part in shown for entry in part[name] or ()] for name in names}
        return {**joined, "top_logprobs": joined["top_logprobs"] or None}

    def _likeliest(self, entries: TopTokens) -> dict[str, float]:
        """By text: the chosen token and the likeliest. Of several with one text, parts of characters, the first."""
        by_text: dict[str, float] = {}
        for token_id, logprob in entries:
            text = token_bytes(self._vocabulary, token_id).decode(errors="replace")
            by_text.setdefault(text, max(logprob, LOWEST))
        return by_text


def _tops(chunk: Chunk) -> Sequence[TopTokens]:
    """For each token the likeliest ones where it was chosen; none if they were not asked for."""
    return chunk.top_logprobs or [()] * len(chunk.token_ids)
