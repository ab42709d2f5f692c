"""What lies between the matrix products of a pass, in the static layout of `static_inputs.py`, on CUDA.

Each launch computes what the plain code of `target.py` and `attention.py` computes, rounded at the same places; between
two products there are at most three. Imported only where a GPU is, or a test of the kernels runs.
"""

from __future__ import annotations

from typing import Any

import torch
import triton

from dartspec.services.verifier.attention_kernel import KEYS, SPLITS, attend_part, combine
from dartspec.services.verifier.row_kernels import add_norm, gate, rotate_store
from dartspec.services.verifier.static_inputs import ITEM_FIELDS, ROW_FIELDS, UNIT_BYTES, WORDS, Inputs
from dartspec.services.verifier.target import Layer, Target

_GATE_BLOCK = 1024


class TritonKernels:
    """Launches for one target. All that they read or write has a fixed address, so a CUDA graph can hold them."""

    def __init__(self, target: Target, rope: tuple[torch.Tensor, torch.Tensor], most_rows: int) -> None:
        c = target.config
        self._config = c
        self._cos, self._sin = (table.contiguous() for table in rope)
        self._unit = UNIT_BYTES // target.dtype.itemsize
        # Of each part of a row's keys: the sum of values and, of the scores, the maximum and the sum of exponentials.
        self._sums = torch.zeros((SPLITS, most_rows, c.heads, c.head_dim), dtype=torch.float32, device=target.device)
        self._scores = torch.zeros((SPLITS, most_rows, c.heads, 2), dtype=torch.float32, device=target.device)

    def add_norm(
        self, x: torch.Tensor, delta: torch.Tensor | None, weight: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """x and delta [rows, H] -> their sum, and that normed and weighted."""
        rows, size = x.shape
        total = x if delta is None else torch.empty_like(x)
        normed = torch.empty_like(x)
        block = triton.next_power_of_2(size)
        add_norm[(rows,)](
            x,
            x if delta is None else delta,
            weight,
            total,
            normed,
            self._config.norm_epsilon,
            SIZE=size,
            BLOCK=block,
            HAS_DELTA=delta is not None,
            num_warps=8 if block > 2048 else 4,
        )
        return total, normed

    def gate(self, gate_up: torch.Tensor) -> torch.Tensor:
        """gate_up [rows, 2 I] -> silu of the first half times the second, [rows, I]."""
        rows, size = gate_up.shape[0], gate_up.shape[1] // 2
        out = gate_up.new_empty(rows, size)
        gate[(rows, triton.cdiv(size, _GATE_BLOCK))](gate_up, out, SIZE=size, BLOCK=_GATE_BLOCK, num_warps=4)
        return out

    def rotate_store(self, inputs: Inputs, index: int, layer: Layer, qkv: torch.Tensor) -> torch.Tensor:
        """qkv [rows, (heads + 2 kv_heads) head_dim] -> rotated queries; keys and values go to their slots."""
        c = self._config
        queries = qkv.new_empty(qkv.shape[0], c.heads, c.head_dim)
        normed = layer.q_norm is not None
        rotate_store[(qkv.shape[0], c.heads + 2 * c.kv_heads)](
            qkv,
            queries,
            inputs.rows,
            inputs.positions,
            self._cos,
            self._sin,
            layer.q_norm if normed else qkv,
            layer.k_norm if normed else qkv,
            inputs.anchor,
            index,
            c.norm_epsilon,
            HEADS=c.heads,
            KV_HEADS=c.kv_heads,
            HEAD_DIM=c.head_dim,
            BLOCK=triton.next_power_of_2(c.head_dim // 2),
            QK_NORM=normed,
            ROW_FIELDS=ROW_FIELDS,
            UNIT=self._unit,
            num_warps=1,
        )
        return queries

    def attend(self, inputs: Inputs, index: int, queries: torch.Tensor) -> torch.Tensor:
        """queries [rows, heads, head_dim] -> [rows, heads head_dim]; rows of padding are zero."""
        c = self._config
        rows = queries.shape[0]
        out = torch.empty(rows, c.heads * c.head_dim, dtype=queries.dtype, device=queries.device)
        group = triton.next_power_of_2(c.heads // c.kv_heads)
        shared: dict[str, Any] = {"HEADS": c.heads, "HEAD_DIM": c.head_dim, "SPLITS": SPLITS, "KEYS": KEYS}
        shared["BLOCK_D"] = triton.next_power_of_2(max(c.head_dim, 16))
        attend_part[(inputs.shape.items, c.kv_heads, SPLITS)](
            queries,
            inputs.items,
            inputs.visible,
            self._sums,
            self._scores,
            inputs.anchor,
            index,
            rows,
            c.head_dim**-0.5,
            KV_HEADS=c.kv_heads,
            GROUP=group,
            TILE=max(inputs.shape.tile, 16 // group),
            WORDS=WORDS,
            ITEM_FIELDS=ITEM_FIELDS,
            UNIT=self._unit,
            num_warps=4,
            num_stages=2,
            **shared,
        )
        combine[(rows, c.heads)](
            self._sums, self._scores, inputs.rows, out, rows, ROW_FIELDS=ROW_FIELDS, num_warps=1, **shared
        )
        return out
