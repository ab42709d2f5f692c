"""Values that travel between the parts, without protobuf and without torch.

All positions are absolute and zero-based; see docs/structure.md for the position contract.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

Int32 = NDArray[np.int32]
Float32 = NDArray[np.float32]
UInt16 = NDArray[np.uint16]

# The likeliest tokens at one position: token id and natural log-probability, likeliest first, of equals the smaller id.
TopTokens = tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen; complete and validated (`sampling_rules.check_sampling`).

    Absent filters have the value that keeps everything: ``top_k`` 0, ``top_p`` 1, ``min_p`` 0.
    """

    temperature: float
    max_tokens: int
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=lambda: MappingProxyType({}))
    allowed_token_ids: tuple[int, ...] = ()
    banned_token_ids: tuple[int, ...] = ()
    min_tokens: int = 0
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    top_logprobs: int = 0


@dataclass(frozen=True)
class Proposals:
    """What the draft head offers for the next d positions (arXiv:2601.19278, section 3).

    token_ids: one int32 array of target ids an offset, likeliest first.
    logprobs: float32 arrays of the same lengths, natural logarithms over the full draft vocabulary.
    transitions: transition scores of a head that has them, as the bits of bfloat16 numbers, else empty: for each offset
    but the first one row for each candidate of the offset before, with what is added to the draft logits of this
    offset's candidates after it.
    """

    token_ids: tuple[Int32, ...]
    logprobs: tuple[Float32, ...]
    transitions: UInt16 = field(default_factory=lambda: np.empty(0, np.uint16))

    @property
    def depth(self) -> int:
        """Number of offsets, d."""
        return len(self.token_ids)

    @property
    def transition_scores(self) -> Float32:
        """`transitions` as numbers."""
        return _bfloat16(self.transitions)

    def cut(self, k: int) -> Proposals:
        """The first k candidates of each offset: what a head that offers k would say."""
        blocks = [block[:k, :k].ravel() for block in self._blocks()]
        return Proposals(
            tuple(ids[:k] for ids in self.token_ids),
            tuple(values[:k] for values in self.logprobs),
            np.concatenate(blocks) if blocks else self.transitions,
        )

    def logprobs_after(self, offset: int, before: int) -> Float32:
        """Log-probabilities of an offset's candidates (counted from 0) after the `before`-th of the offset before.

        Without transition scores those of the offset; with them tokens that are no candidates keep their share.
        """
        logprobs = self.logprobs[offset]
        if not len(self.transitions) or offset == 0:
            return logprobs
        scores = logprobs + _bfloat16(self._blocks()[offset - 1][before])
        others = np.log(max(1.0 - float(np.exp(logprobs.astype(np.float64)).sum()), 1e-9))
        total = np.logaddexp(np.logaddexp.reduce(scores.astype(np.float64)), others)
        return np.minimum(scores - np.float32(total), np.float32(0.0))

    def _blocks(self) -> list[UInt16]:
        """Transition scores by offset from the second on, [candidates before, candidates]; none without."""
        if not len(self.transitions):
            return []
        shapes = [(len(before), len(here)) for before, here in itertools.pairwise(self.token_ids)]
        parts = np.split(self.transitions, np.cumsum([rows * columns for rows, columns in shapes])[:-1])
        return [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]


def _bfloat16(bits: UInt16) -> Float32:
    return (bits.astype(np.uint32) << 16).view(np.float32)


@dataclass(frozen=True)
class Tree:
    """Candidates for the positions after the pending token.

    Node i is described by entry i of each array; as a parent it is called i + 1, and 0 is the root (the pending
    token, which is not stored).

    token_ids: int32 [nodes]. parents: int32 [nodes], parents[i] <= i. survival: float32 [nodes], at most the
    parent's. feature_bins: uint16 [nodes].
    """

    token_ids: Int32
    parents: Int32
    survival: Float32
    feature_bins: UInt16

    def __len__(self) -> int:
        return len(self.token_ids)

    @staticmethod
    def chain(token_ids: Int32, survival: Float32) -> Tree:
        """A tree in which every node follows the one before."""
        n = len(token_ids)
        return Tree(
            token_ids.astype(np.int32),
            np.arange(n, dtype=np.int32),
            survival.astype(np.float32),
            np.zeros(n, dtype=np.uint16),
        )

    @staticmethod
    @cache
    def empty() -> Tree:
        """No candidates: verifying it decodes one token. Always the same object."""
        return Tree.chain(np.empty(0, np.int32), np.empty(0, np.float32))
