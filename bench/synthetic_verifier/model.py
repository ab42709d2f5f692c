"""What a synthetic verifier computes: tokens, which drafts are right, and what a pass costs. Pure."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

_MASK = (1 << 64) - 1
_SCALE = 2.0**-64


def byte_tokenizer() -> Tokenizer:
    """Byte-level without merges: ids 0 to 255 are the bytes in the order of the byte-level alphabet, 256 is <eos>."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={token: index for index, token in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<eos>", special=True)])
    return tokenizer


TOKENIZER = byte_tokenizer()
EOS: int = TOKENIZER.get_vocab(with_added_tokens=True)["<eos>"]
VOCAB_SIZE = TOKENIZER.get_vocab_size(with_added_tokens=True)
# What answers consist of: letters and spaces, each one token.
LETTERS: tuple[int, ...] = tuple(TOKENIZER.encode("abcdefghijklmnopqrstuvwxyz     ").ids)


def prompt_key(prompt: Sequence[int]) -> int:
    """A number that stands for a prompt."""
    return zlib.crc32(np.asarray(prompt, "<u4").tobytes())


def _mixed(key: int, position: int) -> int:
    """64 bits that look random (the finalizer of splitmix64)."""
    value = (key * 0x9E3779B97F4A7C15 + position * 0xBF58476D1CE4E5B9 + 0x94D049BB133111EB) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def token_at(key: int, position: int) -> int:
    """The token at a position behind the prompt with this key."""
    return LETTERS[_mixed(key, position) % len(LETTERS)]


def answer_to(prompt: Sequence[int], count: int) -> list[int]:
    """The first tokens of the answer to a prompt: what a client must get."""
    key = prompt_key(prompt)
    return [token_at(key, len(prompt) + index) for index in range(count)]


def draft_is_right(key: int, position: int, rate: float) -> bool:
    """Whether the draft for a position holds the right token; so often as ``rate`` says, always the same answer."""
    return _mixed(key ^ 0x5A5A5A5A, position) * _SCALE < rate


def expected_accepted(rate: float, depth: int) -> float:
    """Mean A of a chain of ``depth`` drafts that are right with probability ``rate`` each: sum of rate^i."""
    return sum(rate**i for i in range(1, depth + 1))


@dataclass(frozen=True)
class Acceptance:
    """How often drafts are right, by a word in the prompt; ``usual`` without any of the words."""

    usual: float = 0.7
    by_word: Mapping[str, float] | None = None

    def rate(self, prompt: str) -> float:
        """Of drafts for the answer to a prompt."""
        return next((rate for word, rate in (self.by_word or {}).items() if word in prompt), self.usual)


@dataclass(frozen=True)
class Cost:
    """What a pass takes: ``rows`` (rising) against ``ms``, linear between them and on beyond the last two."""

    rows: NDArray[np.float64]
    ms: NDArray[np.float64]

    @classmethod
    def parse(cls, text: str) -> Cost:
        """From "1:30,64:32,256:120". Raises ValueError with the part that is wrong."""
        pairs = []
        for part in text.split(","):
            rows, _, ms = part.partition(":")
            try:
                pairs.append((float(rows), float(ms)))
            except ValueError:
                raise ValueError(f"must be ROWS:MS,ROWS:MS,..., got {part!r}") from None
        table = np.array(pairs, np.float64)
        if not np.all(np.diff(table[:, 0]) > 0) or np.any(table[:, 1] <= 0):
            raise ValueError(f"rows must rise and times be above 0, got {text!r}")
        return cls(table[:, 0], table[:, 1])

    def pass_ms(self, rows: float) -> float:
        """Milliseconds of a pass of so many tokens."""
        if len(self.rows) > 1 and rows > self.rows[-1]:
            slope = (self.ms[-1] - self.ms[-2]) / (self.rows[-1] - self.rows[-2])
            return float(self.ms[-1] + slope * (rows - self.rows[-1]))
        return float(np.interp(rows, self.rows, self.ms))
