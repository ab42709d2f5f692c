"""The target's features on their way to the draft head, and the head's keys and values, beside a region of KV cache.

Everything has a place by position, so that it is counted, copied and freed together with the target's keys and values.
"""

from __future__ import annotations

import torch

from dartspec.services.draft.cache import HeadCache
from dartspec.services.draft.config import HeadConfig
from dartspec.services.verifier.lazy_memory import zeros

# Tokens of a block of a reusable prefix. A pass of up to 64 rows costs about what one of a single row costs, so smaller
# blocks would save next to nothing of the prompt's rest; every block costs a row of features and a look-up.
PREFIX_BLOCK = 64
# Rows of features that a session may keep waiting for the head; then they are handed over.
WAITING_ROWS = 64


class DraftRows:
    """What the draft head needs of the positions of one region.

    head [2, kv_heads, positions, head_dim]: its keys and values, the row of position j at place j + 1 of a slot. That
    row depends on x[j + 1], so the rows at the places of a block depend on the tokens up to its end, on no later one.
    ends [positions / PREFIX_BLOCK, width]: features at the last position of every block.
    waiting [positions / unit, WAITING_ROWS, width]: at a slot's first unit, features that the head has not seen.
    """

    def __init__(
        self, config: HeadConfig, positions: int, unit: int, head_dtype: torch.dtype, like: torch.Tensor
    ) -> None:
        width = config.feature_width
        device = like.device
        self.head = zeros((2, config.num_key_value_heads, positions, config.head_dim), head_dtype, device)
        self.ends = zeros((positions // PREFIX_BLOCK, width), like.dtype, device)
        self.waiting = zeros((positions // unit, WAITING_ROWS, width), like.dtype, device)
        self._config = config
        self._unit = unit

    def of_size(self, positions: int) -> DraftRows:
        """The same for another region."""
        return DraftRows(self._config, positions, self._unit, self.head.dtype, like=self.ends)

    def head_store(self, start: int, capacity: int) -> torch.Tensor:
        """Where a slot's `HeadCache` lives: [2, kv_heads, capacity - 1, head_dim]."""
        return self.head[:, :, start + 1 : start + capacity]

    def unit_of(self, start: int) -> int:
        """Which of ``waiting`` belongs to the slot that begins there."""
        return start // self._unit

    def end_of(self, position: int) -> torch.Tensor:
        """Features [1, width] at the end of the block with this position of the region."""
        block = position // PREFIX_BLOCK
        return self.ends[block : block + 1]

    def copy_from(self, other: DraftRows, start: int, to: int, count: int) -> None:
        """Whole blocks, from ``start`` .. to ``to`` .., positions of the regions."""
        self.head[:, :, to : to + count] = other.head[:, :, start : start + count]
        first, target, blocks = start // PREFIX_BLOCK, to // PREFIX_BLOCK, count // PREFIX_BLOCK
        self.ends[target : target + blocks] = other.ends[first : first + blocks]


def bytes_per_position(config: HeadConfig, unit: int, head_itemsize: int, itemsize: int) -> float:
    """Memory of `DraftRows` for each position."""
    width = config.feature_width
    head = 2 * config.num_key_value_heads * config.head_dim * head_itemsize
    return head + width * itemsize * (1 / PREFIX_BLOCK + WAITING_ROWS / unit)


class SessionFeatures:
    """A drafting session's part of them: positions cache.length .. cache.length + count - 1 wait for the head."""

    def __init__(self, rows: DraftRows, start: int, cache: HeadCache) -> None:
        self.rows = rows
        self.start = start  # the slot's first position in the region
        self.unit = rows.unit_of(start)
        self.cache = cache
        self.count = 0

    @property
    def waiting(self) -> torch.Tensor:
        """[count, width]."""
        return self.rows.waiting[self.unit, : self.count]

    def take_over(self, length: int) -> None:
        """The first ``length`` positions, whole blocks, have been copied here: the head's rows of all but the last of
        them, and the features of the last, whose row depends on a token that is this session's own."""
        self.cache.adopt(length - 1)
        self.rows.waiting[self.unit, :1] = self.rows.end_of(self.start + length - 1)
        self.count = 1
