"""Linear layers whose rows do not depend on how many rows share the pass.

Matrix kernels choose their blocking by the number of rows, so the last bits of a row's result change with its company,
and a near-tie between two tokens may flip between plain decoding and a tree pass. With ``invariant`` every product is
made of tiles of exactly `TILE_ROWS` rows, so one kernel with one blocking computes every row.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

TILE_ROWS = 64


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, invariant: bool) -> torch.Tensor:
    """x [rows, in] times weight [out, in] transposed, plus bias [out]."""
    if not invariant:
        return F.linear(x, weight, bias)
    rows = x.shape[0]
    padded = F.pad(x, (0, 0, 0, -rows % TILE_ROWS))
    tiles = [F.linear(tile, weight, bias) for tile in padded.split(TILE_ROWS)]
    return (tiles[0] if len(tiles) == 1 else torch.cat(tiles))[:rows]
