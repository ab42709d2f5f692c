"""Whether rows can be made independent of their company on this machine, and at what price.

Looked for at start, on the model's own weights: the smallest block of rows (see `linear.py`) for which every product of
up to 64 rows gives bitwise the same rows.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from dartspec.services.verifier.linear import TILE_ROWS, Matrix
from dartspec.services.verifier.target import Target

ROW_BLOCKS = (1, 4, 8, 16, 32)
# A plain step may cost this much more before the mode is off by default.
ACCEPTED_COST = 1.03
REPEATS = 7


def smallest_row_block(target: Target) -> int:
    """The smallest block of rows that holds for every shape of weight; `TILE_ROWS` if no smaller one does."""
    layer = target.layers[0]
    weights = [layer.qkv, layer.out, layer.gate_up, layer.down, target.lm_head]
    return next((block for block in ROW_BLOCKS if all(_holds(weight, block) for weight in weights)), TILE_ROWS)


def settle(target: Target, choice: str, step_ms: Callable[[], float]) -> None:
    """Set ``target.row_block`` for "on", "off" or "auto", which is on where a plain step costs under 3% more.

    ``step_ms`` makes one plain pass and says how long it took; the two ways take turns, and the least counts.
    """
    target.row_block = 0
    if choice == "off":
        return
    block = smallest_row_block(target)
    if choice == "auto":
        best = {0: float("inf"), block: float("inf")}
        for _ in range(REPEATS):
            for each in best:
                target.row_block = each
                best[each] = min(best[each], step_ms())
        if best[block] > ACCEPTED_COST * best[0]:
            block = 0
    target.row_block = block


@torch.inference_mode()
def _holds(weight: Matrix, block: int) -> bool:
    """Whether products of ``block``, 2 ``block``, ... rows give the rows that a product of `TILE_ROWS` gives."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(TILE_ROWS, weight.in_features, generator=generator).to(weight.device, weight.dtype)
    full = weight(x)
    return all(torch.equal(weight(x[:rows]), full[:rows]) for rows in range(block, TILE_ROWS, block))
