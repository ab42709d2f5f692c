"""The draft head on processors with compiled loops: attention of all sessions in one call, and the likeliest tokens."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from dartspec.services.common.types import Proposals
from dartspec.services.draft.coin import Coin
from dartspec.services.draft.head import DraftHead, Rotation
from dartspec.services.draft.propose import DraftInput, Proposer
from dartspec.services.verifier.static_inputs import ITEM_FIELDS, UNIT_BYTES, WORDS

log = logging.getLogger(__name__)


class CompiledProposer(Proposer):
    """As `Proposer`, to rounding. Raises ImportError without numba, ValueError for heads that there is no code for."""

    def __init__(self, head: DraftHead) -> None:
        super().__init__(head)
        from dartspec.services.verifier.attention_loop import attention_loop
        from dartspec.services.verifier.top_loop import top_loop

        c, dtype = head.config, head.fc.weight.dtype
        if dtype not in (torch.float32, torch.bfloat16):
            raise ValueError(f"no loops for {dtype}")
        attend = attention_loop(dtype, c.num_attention_heads, c.num_key_value_heads, c.head_dim, c.depth)
        if attend is None or c.depth > 64 or c.head_dim * dtype.itemsize % UNIT_BYTES:
            raise ValueError(f"no loops for heads of {c.head_dim} and {c.depth} positions")
        self._attend, self._top = attend, top_loop(dtype)
        # A MASK row is the same everywhere but for its rotation.
        with torch.inference_mode():
            still = Rotation(torch.ones(1, 1, c.head_dim, dtype=dtype), torch.zeros(1, 1, c.head_dim, dtype=dtype))
            self._mask_queries, self._mask_keys, self._mask_values = super().mask_projections(still)
        # Row i of a session sees rows 0 .. i behind the prefix.
        self._visible = np.zeros((c.depth, WORDS), np.int64)
        self._visible[:, 0] = [(1 << row + 1) - 1 - (1 << 64 if row == 63 else 0) for row in range(c.depth)]

    def mask_projections(self, rotation: Rotation) -> tuple[Tensor, Tensor, Tensor]:
        """See `Proposer.mask_projections`."""
        values = self._mask_values.expand(len(rotation.cos), -1, -1)
        return rotation(self._mask_queries), rotation(self._mask_keys), values

    def mixed(self, queries: Tensor, inputs: Sequence[DraftInput], keys: Tensor, values: Tensor) -> Tensor:
        """See `Proposer.mixed`."""
        sessions, rows, heads, head_dim = queries.shape
        queries = queries.contiguous()
        out = torch.empty(sessions * rows, heads * head_dim, dtype=queries.dtype)
        anchor, row_bytes = queries.data_ptr() // UNIT_BYTES * UNIT_BYTES, head_dim * queries.itemsize
        items = np.zeros((sessions, ITEM_FIELDS), np.int64)
        pairs = 0
        for number, entry in enumerate(inputs):
            stored_keys, stored_values = entry.cache.with_masks(keys[number], values[number])
            apart = stored_values.data_ptr() - stored_keys.data_ptr()
            slot, prefix = (stored_keys.data_ptr() - anchor) // UNIT_BYTES, stored_keys.shape[1] - rows
            strides = (2 * apart // row_bytes, stored_keys.stride(0) // head_dim)
            items[number] = (number * rows, rows, slot, *strides, prefix, 0)
            pairs += rows * (prefix + rows)
        visible = np.tile(self._visible[:rows], (sessions, 1))
        self._attend(
            sessions * self.config.num_key_value_heads,
            pairs * heads * head_dim // 4,
            sessions * rows,
            0,
            items.ctypes.data,
            queries.data_ptr(),
            visible.ctypes.data,
            anchor,
            out.data_ptr(),
        )
        return out

    def top(self, logits: Tensor, top_k: int, coins: Sequence[Coin | None]) -> list[Proposals]:
        """See `Proposer.top`; the loop ranks for sessions without a coin."""
        plain = [row for row, coin in enumerate(coins) if coin is None]
        tossed = [row for row, coin in enumerate(coins) if coin is not None]
        if not tossed:
            return self._likeliest(logits, top_k)
        found = dict(zip(tossed, super().top(logits[tossed], top_k, [coins[row] for row in tossed]), strict=True))
        found |= zip(plain, self._likeliest(logits[plain], top_k), strict=True)
        return [found[row] for row in range(len(coins))]

    def _likeliest(self, logits: Tensor, top_k: int) -> list[Proposals]:
        logits = logits.contiguous()
        sessions, depth, vocab = logits.shape
        top_k = min(top_k, vocab)
        ids = np.empty((sessions, depth, top_k), np.int32)
        logprobs = np.empty((sessions, depth, top_k), np.float32)
        self._top(
            sessions * depth,
            8 * logits.numel(),
            vocab,
            top_k,
            logits.data_ptr(),
            self._target_ids.data_ptr(),
            ids.ctypes.data,
            logprobs.ctypes.data,
        )
        pairs = self.transitions(torch.from_numpy(ids))
        scores = np.empty((sessions, 0), np.uint16) if pairs is None else pairs.numpy().view(np.uint16)
        return [Proposals(tuple(a), tuple(b), c) for a, b, c in zip(ids, logprobs, scores, strict=True)]


def proposer_for(head: DraftHead) -> Proposer:
    """The fastest one that there is for a head."""
    if head.fc.weight.device.type == "cpu":
        try:
            return CompiledProposer(head)
        except (ImportError, ValueError) as error:
            log.info("drafts are made without compiled loops: %s", error)
        except Exception as error:  # a compiler that does not know this processor
            log.warning("drafts are made without compiled loops: %s: %s", type(error).__name__, error)
    return Proposer(head)
