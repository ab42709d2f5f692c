"""Attention of one pass's rows over a session's keys, and the masks for it."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from dartspec.services.verifier.kv_cache import SLOT_BLOCK

# Kernels take another path for fewer rows than this, at the end of a block of rows too, and the last bits differ.
ROW_BLOCK = 4


def key_count(prefix: int, rows: int, padded: bool) -> int:
    """Keys that a pass reads: the prefix and its own rows, rounded up to whole blocks when ``padded``."""
    count = prefix + rows
    return -(-count // SLOT_BLOCK) * SLOT_BLOCK if padded else count


def row_count(rows: int, padded: bool) -> int:
    """Rows of queries that a pass computes: its own, rounded up to whole blocks when ``padded``."""
    return -(-rows // ROW_BLOCK) * ROW_BLOCK if padded else rows


def tree_mask(
    prefix: int, visible: NDArray[np.bool_], keys: int, query_rows: int, like: torch.Tensor
) -> torch.Tensor | None:
    """Mask of a pass whose rows see the whole prefix and ``visible`` [rows, rows] of each other.

    [query_rows, keys], 0 where a row sees and minus infinity where not, of the type and on the device of ``like``: made
    once for all layers, which would each turn a boolean mask into this. None when every row sees every key, as in
    plain decoding without padding.
    """
    rows = len(visible)
    if keys == prefix + rows and visible.all():
        return None
    mask = np.zeros((query_rows, keys), dtype=bool)
    mask[:, :prefix] = True
    mask[:rows, prefix : prefix + rows] = visible
    mask[rows:, 0] = True  # a padding row that saw nothing would be NaN
    allowed = torch.from_numpy(mask).to(like.device)
    return torch.zeros(mask.shape, dtype=like.dtype, device=like.device).masked_fill_(~allowed, float("-inf"))


def causal_rows(rows: int) -> NDArray[np.bool_]:
    """Rows that are consecutive tokens: bool [rows, rows]."""
    return np.tri(rows, dtype=bool)


def attend(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor | None, scale: float
) -> torch.Tensor:
    """queries [heads, rows, head_dim], keys and values [kv_heads, keys, head_dim] -> [heads, rows, head_dim].

    mask: what is added to the scores, [rows, keys], or None.
    """
    return F.scaled_dot_product_attention(
        queries[None],
        keys[None],
        values[None],
        attn_mask=None if mask is None else mask[None, None],
        scale=scale,
        enable_gqa=queries.shape[0] != keys.shape[0],
    )[0]
