"""Linear layers whose rows do not depend on how many rows share the pass.

Matrix kernels choose their blocking by the number of rows, so the last bits of a row's result change with its company,
and a near-tie between two tokens may flip between plain decoding and a tree pass. In `invariant` mode every product
has a number of rows for which the kernels do the same: whole multiples of a block, in tiles of at most `TILE_ROWS`.
With blocks of `TILE_ROWS` all products have one shape, which holds anywhere; `invariance.py` looks for a smaller block.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

TILE_ROWS = 64


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, row_block: int) -> torch.Tensor:
    """x [rows, in] times weight [out, in] transposed, plus bias [out]. ``row_block`` 0: as the kernels like it."""
    if not row_block:
        return F.linear(x, weight, bias)
    rows = x.shape[0]
    spare = -rows % row_block
    padded = F.pad(x, (0, 0, 0, spare)) if spare else x
    tiles = [F.linear(tile, weight, bias) for tile in padded.split(TILE_ROWS)]
    return (tiles[0] if len(tiles) == 1 else torch.cat(tiles))[:rows]
