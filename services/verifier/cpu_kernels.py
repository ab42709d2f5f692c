"""What lies between the matrix products of a pass, in the static layout of `static_inputs.py`, on processors.

The twin of `kernels.py`: rounded at the same places, three calls between two products at most. Imported only where
numba is.
"""

from __future__ import annotations

import torch

from dartspec.services.verifier.attention_loop import attention_loop
from dartspec.services.verifier.row_loops import row_loops
from dartspec.services.verifier.static_inputs import Inputs
from dartspec.services.verifier.target import Layer, Target


class CpuKernels:
    """Loops for one target. Raises ValueError when there is no code for its heads or its type."""

    def __init__(self, target: Target, tile: int) -> None:
        """tile: rows of an item of the inputs at most."""
        c = target.config
        if target.dtype not in (torch.float32, torch.bfloat16):
            raise ValueError(f"no loops for {target.dtype}")
        attend = attention_loop(target.dtype, c.heads, c.kv_heads, c.head_dim, tile)
        if attend is None:
            raise ValueError(f"no loops for heads of {c.head_dim}")
        self._config, self._tile = c, tile
        self._attend = attend
        self._loops = row_loops(target.dtype, c.heads, c.kv_heads, c.head_dim, c.norm_epsilon)
        self._cos, self._sin = (table.contiguous() for table in target.rope)

    def add_norm(
        self, x: torch.Tensor, delta: torch.Tensor | None, weight: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """x and delta [rows, H] -> their sum, and that normed and weighted."""
        rows, size = x.shape
        total = x if delta is None else torch.empty_like(x)
        normed = torch.empty_like(x)
        addresses = (x.data_ptr(), 0 if delta is None else delta.data_ptr(), weight.data_ptr())
        self._loops.add_norm(rows, 2 * rows * size, rows, size, *addresses, total.data_ptr(), normed.data_ptr())
        return total, normed

    def gate(self, gate_up: torch.Tensor) -> torch.Tensor:
        """gate_up [rows, 2 I] -> silu of the first half times the second, [rows, I]."""
        rows, size = gate_up.shape[0], gate_up.shape[1] // 2
        out = gate_up.new_empty(rows, size)
        self._loops.gate(rows, 4 * rows * size, rows, size, gate_up.data_ptr(), out.data_ptr())
        return out

    def rotate_store(self, inputs: Inputs, index: int, layer: Layer, qkv: torch.Tensor) -> torch.Tensor:
        """qkv [rows, (heads + 2 kv_heads) head_dim] -> rotated queries; keys and values go to their slots."""
        c, rows = self._config, qkv.shape[0]
        queries = qkv.new_empty(rows, c.heads, c.head_dim)
        self._loops.rotate_store(
            rows,
            2 * qkv.numel(),
            rows,
            index,
            qkv.data_ptr(),
            queries.data_ptr(),
            inputs.rows.data_ptr(),
            inputs.positions.data_ptr(),
            self._cos.data_ptr(),
            self._sin.data_ptr(),
            0 if layer.q_norm is None else layer.q_norm.data_ptr(),
            0 if layer.k_norm is None else layer.k_norm.data_ptr(),
            inputs.anchor.data_ptr(),
        )
        return queries

    def attend(self, inputs: Inputs, index: int, queries: torch.Tensor) -> torch.Tensor:
        """queries [rows, heads, head_dim] -> [rows, heads head_dim]; rows of padding are zero."""
        c, rows = self._config, queries.shape[0]
        assert inputs.shape.tile <= self._tile
        out = torch.zeros(rows, c.heads * c.head_dim, dtype=queries.dtype)
        self._attend(
            inputs.shape.items * c.kv_heads,
            inputs.pairs * c.heads * c.head_dim // 4,
            rows,
            index,
            inputs.items.data_ptr(),
            queries.data_ptr(),
            inputs.visible.data_ptr(),
            inputs.anchor.data_ptr(),
            out.data_ptr(),
        )
        return out
