"""Keys and values of one session, in one slot range of its own.

Invariant between passes: slots 0 .. length-1 hold the committed and processed tokens x[0..length-1] in order, and no
pass reads a slot at or after ``length`` that it did not write itself.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

# Key ranges are padded to a multiple of this, see `attention.py`; capacities are too, so that a pad never overruns.
SLOT_BLOCK = 512


def rounded_capacity(positions: int) -> int:
    """``positions`` rounded up to whole blocks."""
    return -(-positions // SLOT_BLOCK) * SLOT_BLOCK


class KVCache:
    """Storage [layers, 2, kv_heads, capacity, head_dim] of one session; index 0 of the second axis is keys."""

    def __init__(
        self, layers: int, kv_heads: int, head_dim: int, capacity: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        # Zeros, not empty: a masked slot has weight 0, and 0 times a stray NaN would still be NaN.
        self.data = torch.zeros(layers, 2, kv_heads, capacity, head_dim, dtype=dtype, device=device)
        self.length = 0

    @property
    def capacity(self) -> int:
        """Positions that fit."""
        return int(self.data.shape[3])

    def write(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Put a pass's keys and values [kv_heads, rows, head_dim] behind the committed ones."""
        end = self.length + keys.shape[1]
        self.data[layer, 0, :, self.length : end] = keys
        self.data[layer, 1, :, self.length : end] = values

    def read(self, layer: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Views of the first ``count`` slots, keys and values [kv_heads, count, head_dim]."""
        return self.data[layer, 0, :, :count], self.data[layer, 1, :, :count]

    def commit(self, rows: Sequence[int]) -> None:
        """Keep these rows of the last pass, in this order (rising), behind the committed ones; forget the others."""
        count = len(rows)
        if list(rows) != list(range(count)):
            index = torch.tensor(rows, device=self.data.device) + self.length
            self.data[:, :, :, self.length : self.length + count] = self.data.index_select(3, index)
        self.length += count
