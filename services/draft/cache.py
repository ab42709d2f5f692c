"""Keys and values of one session's prefix in the draft head."""

from __future__ import annotations

import torch
from torch import Tensor

from dartspec.services.draft.config import HeadConfig

_FIRST_CAPACITY = 256


class HeadCache:
    """Keys and values at positions 0 .. length-1, with room for the MASK rows of one round behind them.

    Invariant: only prefix rows count in `length`; what `with_masks` puts behind them is overwritten by the next
    append. `length` equals the number of processed positions the head has seen.

    `store` [keys/values, kv_heads, capacity, head_dim] is memory of the caller's, which must hold all that will come;
    without it the cache has its own, which grows.
    """

    def __init__(
        self, config: HeadConfig, dtype: torch.dtype, device: torch.device | str, store: Tensor | None = None
    ) -> None:
        self.length = 0
        self._spare = config.draft_length
        self._window = config.attention_window
        self._grows = store is None
        if store is not None:
            self._store = store
            return
        shape = (2, config.num_key_value_heads, _FIRST_CAPACITY + self._spare, config.head_dim)
        with torch.inference_mode(False):  # so that the store can be written in any mode, whoever made it
            self._store = torch.empty(shape, dtype=dtype, device=device)  # [keys/values, kv_heads, capacity, head_dim]

    def append(self, keys: Tensor, values: Tensor) -> None:
        """Add prefix rows, each [rows, kv_heads, head_dim], at positions length .. length + rows - 1."""
        end = self.length + keys.shape[0]
        self._reserve(end + self._spare)
        self._store[0, :, self.length : end] = keys.transpose(0, 1)
        self._store[1, :, self.length : end] = values.transpose(0, 1)
        self.length = end

    def with_masks(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values [kv_heads, visible + rows, head_dim] of the prefix and, behind it, of a round's MASK rows.

        visible: the whole prefix, or the last of it if the head has a window. The MASK rows do not become part of the
        cache; the result is a view that the next append invalidates.
        """
        end = self.length + keys.shape[0]
        self._store[0, :, self.length : end] = keys.transpose(0, 1)
        self._store[1, :, self.length : end] = values.transpose(0, 1)
        first = max(0, self.length - self._window) if self._window else 0
        return self._store[0, :, first:end], self._store[1, :, first:end]

    def truncate(self, length: int) -> None:
        """Forget positions from `length` on. Raises ValueError beyond what is held."""
        if not 0 <= length <= self.length:
            raise ValueError(f"head cache holds {self.length} positions and cannot be cut to {length}")
        self.length = length

    def adopt(self, length: int) -> None:
        """The first `length` positions of the store have been written from elsewhere: a reused prefix."""
        if not 0 <= length <= self._store.shape[2] - self._spare:
            raise ValueError(f"head cache has room for {self._store.shape[2] - self._spare} positions, {length} wanted")
        self.length = length

    def _reserve(self, capacity: int) -> None:
        held = self._store.shape[2]
        if capacity > held:
            if not self._grows:
                raise ValueError(f"head cache has {held} places, {capacity} are needed")
            shape = (*self._store.shape[:2], max(capacity, 2 * held), self._store.shape[3])
            with torch.inference_mode(False):
                grown = torch.empty(shape, dtype=self._store.dtype, device=self._store.device)
            grown[:, :, : self.length] = self._store[:, :, : self.length]
            self._store = grown
