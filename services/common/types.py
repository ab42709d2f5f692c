"""Values that travel between the parts, without protobuf and without torch.

All positions are absolute and zero-based; see docs/structure.md for the position contract.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
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
    """

    token_ids: tuple[Int32, ...]
    logprobs: tuple[Float32, ...]

    @property
    def depth(self) -> int:
        """Number of offsets, d."""
        return len(self.token_ids)


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
    def empty() -> Tree:
        """No candidates: verifying it decodes one token."""
        return Tree.chain(np.empty(0, np.int32), np.empty(0, np.float32))
