"""Linear layers: weights laid out once for the processor, and rows that do not depend on how many share the pass.

Layout: oneDNN's matrix kernels want blocked weights and reorder plain ones at every call of more than one row; a weight
that is packed at load saves that. (Measured with SmolLM2-135M's shapes on two avx512_bf16 cores, torch 2.15: layers
and output matrix for 8 rows 42 ms plain, 26 ms packed in bfloat16; 86 and 31 in float32.)

Rows: kernels choose their blocking by the number of rows, so the last bits of a row's result change with its company,
and a near-tie between two tokens may flip between plain decoding and a tree pass. In `invariant` mode every product
has a number of rows for which the kernels do the same: whole multiples of a block, in tiles of at most so many rows.
Where block and tile are the same all products have one shape, which holds anywhere; `invariance.py` looks for better.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

# oneDNN compiles a kernel for every shape of weight and number of rows and keeps the last 1024 of them, 0.6 to 0.7 MiB
# each. It reads this before its first kernel; memory budgets count on it. Compiling one anew takes 2 ms.
KERNELS_KEPT = 512
KERNEL_BYTES = (7 << 20) // 10
os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", str(KERNELS_KEPT))

# Rows that the packed layout is made for; any other number works too.
_TYPICAL_ROWS = 16


# Products take somewhat more rows than they must, so that there are fewer shapes to compile for: up to so many rows a
# multiple of so many, and of the last beyond. A row of the target costs much, one of the draft head little.
TARGET_STEPS = ((32, 1), (64, 2), (128, 8), (256, 16))
HEAD_STEPS = ((8, 1), (64, 8))
_LAST_STEP = 32


def kernel_rows(rows: int, steps: Sequence[tuple[int, int]]) -> int:
    """The number of rows to take for ``rows`` of them."""
    step = next((step for most, step in steps if rows <= most), _LAST_STEP)
    return rows + -rows % step


def pad_rows(x: torch.Tensor, rows: int) -> torch.Tensor:
    """x [at most rows, ...] with zeros up to so many rows."""
    return F.pad(x, (0, 0, 0, rows - len(x))) if rows > len(x) else x


@dataclass(frozen=True)
class Rows:
    """Numbers of rows that products have where rows shall not depend on their company: block, 2 block, ... tile."""

    block: int
    tile: int


ONE_SHAPE = Rows(64, 64)


class Matrix:
    """A weight [out, in] in the layout that suits its device. Keeps the plain tensor only where nothing else helps."""

    def __init__(self, weight: torch.Tensor) -> None:
        self.out_features, self.in_features = weight.shape
        self.dtype, self.device = weight.dtype, weight.device
        self._packed = _pack(weight)
        self._plain = weight if self._packed is None else None

    @property
    def plain(self) -> torch.Tensor | None:
        """The weight as it came, if it is kept like that."""
        return self._plain

    def __call__(self, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """x [rows, in] -> x times the weight transposed, plus bias [out]."""
        if self._packed is None:
            assert self._plain is not None
            return F.linear(x, self._plain, bias)
        return torch.ops.mkldnn._linear_pointwise(x, self._packed, bias, "none", [], "")


def linear(x: torch.Tensor, weight: Matrix, bias: torch.Tensor | None, shape: Rows | None) -> torch.Tensor:
    """x [rows, in] times weight [out, in] transposed, plus bias [out]. ``shape`` None: as the kernels like it."""
    if shape is None:
        return weight(x, bias)
    rows = x.shape[0]
    padded = pad_rows(x, rows + -rows % shape.block)
    if len(padded) <= shape.tile:
        return weight(padded, bias)[:rows]
    return torch.cat([weight(tile, bias) for tile in padded.split(shape.tile)])[:rows]


def _pack(weight: torch.Tensor) -> torch.Tensor | None:
    """The weight in oneDNN's layout; None where that does not exist or does not give the same products."""
    if weight.device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return None
    if weight.dtype == torch.bfloat16 and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return None
    try:
        # The layout and the product are what torch.compile uses on processors; there is no public name for them.
        packed = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), _TYPICAL_ROWS)
        x = torch.ones(2, weight.shape[1], dtype=weight.dtype)
        product = torch.ops.mkldnn._linear_pointwise(x, packed, None, "none", [], "")
        expected = F.linear(x, weight)
    except (RuntimeError, AttributeError, NotImplementedError):
        return None
    tolerance = 1e-4 if weight.dtype == torch.float32 else 2e-2
    scale = expected.abs().max().clamp(min=1.0)
    return packed if bool((product - expected).abs().max() <= tolerance * scale) else None
