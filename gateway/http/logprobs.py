"""Log-probabilities as that API shows them: one object a token for chats, parallel arrays for text completions."""

from __future__ import annotations

import codecs
import re
from typing import Any

from dartspec.gateway.detokenize import Vocabulary
from dartspec.gateway.types import Chunk
from dartspec.services.common.errors import InvalidArgument
from dartspec.v1 import common_pb2

LOWEST = -9999.0  # JSON has no infinity
BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def ask_top_logprobs(sampling: common_pb2.Sampling, count: int) -> None:
    """Ask for those of the ``count`` likeliest tokens. Raises InvalidArgument: verifiers do not tell them."""
    if count:
        raise InvalidArgument("top_logprobs", "only the chosen tokens' log-probabilities are told; use 0")


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
        pairs = zip(chunk.token_ids, chunk.logprobs, strict=True)
        return {"content": [self._token(token, logprob) | {"top_logprobs": []} for token, logprob in pairs]}

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
        tokens, offsets = [], []
        for token_id in chunk.token_ids:
            data = token_bytes(self._vocabulary, token_id)
            tokens.append(data.decode(errors="replace"))
            offsets.append(self._offset)
            if self._vocabulary.token(token_id) is not None:  # others leave no text
                self._offset += len(self._utf8.decode(data))
        values = [max(value, LOWEST) for value in chunk.logprobs]
        return {"tokens": tokens, "token_logprobs": values, "top_logprobs": None, "text_offset": offsets}

    def join(self, shown: list[dict[str, Any]]) -> dict[str, Any]:
        """Those of all chunks."""
        lists = {
            name: [entry for part in shown for entry in part[name]]
            for name in ("tokens", "token_logprobs", "text_offset")
        }
        return {**lists, "top_logprobs": None}
