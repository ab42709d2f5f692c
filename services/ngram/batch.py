"""What readers hand to the builder at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Tokens of a batch, about.
BATCH_TOKENS = 1 << 20


@dataclass(frozen=True)
class Batch:
    """Documents as tokens uint16 or uint32 [T] and offsets int64 [documents + 1].

    next_document: number of the first document of the file behind this batch. done: bytes of the file read up to there.
    unfinished: the last document goes on in the next batch.
    """

    tokens: NDArray[Any]
    offsets: NDArray[np.int64]
    next_document: int
    done: int
    unfinished: bool = False

    @property
    def finished(self) -> int:
        """Documents that end in this batch."""
        return len(self.offsets) - 1 - self.unfinished


def pack(documents: Sequence[Sequence[int]], next_document: int, done: int) -> Batch:
    """A batch of lists of ids."""
    offsets = np.zeros(len(documents) + 1, np.int64)
    np.cumsum([len(document) for document in documents], out=offsets[1:])
    ids = (token for document in documents for token in document)
    return Batch(np.fromiter(ids, np.uint32, int(offsets[-1])), offsets, next_document, done)
