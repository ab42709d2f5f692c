"""The parts of a pass that are not matrix products, as Triton kernels for CUDA: between two products at most three launches.

Each computes what the plain code of `target.py` and `attention.py` computes, rounded at the same places, for passes in the
static layout of `static_inputs.py`; `attention_kernel.py` has the attention. Imported only where Triton and a GPU are.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from dartspec.services.verifier.attention_kernel import KEYS, SPLITS, attend_part, combine
from dartspec.services.verifier.static_inputs import ITEM_FIELDS, ROW_FIELDS, UNIT_BYTES, WORDS, Inputs
from dartspec.services.verifier.target import Layer, Target

_GATE_BLOCK = 1024


@triton.jit
def _add_norm(
    x, delta, weight, total, normed, epsilon, SIZE: tl.constexpr, BLOCK: tl.constexpr, HAS_DELTA: tl.constexpr
):
    """One row: total = x + delta, normed = weight * (total / rms(total)), the quotient rounded first."""
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    inside = at < SIZE
    dtype = x.dtype.element_ty
    value = tl.load(x + row * SIZE + at, inside, 0.0).to(tl.float32)
    if HAS_DELTA:
        value = (value + tl.load(delta + row * SIZE + at, inside, 0.0).to(tl.float32)).to(dtype).to(tl.float32)
        tl.store(total + row * SIZE + at, value.to(dtype), inside)
    scale = 1.0 / tl.sqrt(tl.sum(value * value, axis=0) / SIZE + epsilon)
    quotient = (value * scale).to(dtype).to(tl.float32)
    tl.store(normed + row * SIZE + at, (quotient * tl.load(weight + at, inside, 0.0).to(tl.float32)).to(dtype), inside)


@triton.jit
def _gate(gate_up, out, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    """A block of one row: silu(gate) * up."""
    row = tl.program_id(0)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < SIZE
    dtype = gate_up.dtype.element_ty
    gate = tl.load(gate_up + row * 2 * SIZE + at, inside, 0.0).to(tl.float32)
    up = tl.load(gate_up + row * 2 * SIZE + SIZE + at, inside, 0.0).to(tl.float32)
    active = (gate / (1.0 + tl.exp(-gate))).to(dtype).to(tl.float32)
    tl.store(out + row * SIZE + at, (active * up).to(dtype), inside)


@triton.jit(do_not_specialize=["layer"])
def _rotate_store(
    qkv,
    queries,
    rows,
    positions,
    cos,
    sin,
    q_norm,
    k_norm,
    anchor,
    layer,
    epsilon,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK: tl.constexpr,
    QK_NORM: tl.constexpr,
    ROW_FIELDS: tl.constexpr,
    UNIT: tl.constexpr,
):
    """One head of one row: a query is normed, rotated and kept, a key stored in its session's slot, a value stored."""
    row = tl.program_id(0)
    head = tl.program_id(1)
    HALF: tl.constexpr = HEAD_DIM // 2
    at = tl.arange(0, BLOCK)
    inside = at < HALF
    dtype = qkv.dtype.element_ty
    source = qkv + (row * (HEADS + 2 * KV_HEADS) + head) * HEAD_DIM + at
    low = tl.load(source, inside, 0.0)
    high = tl.load(source + HALF, inside, 0.0)
    if head < HEADS + KV_HEADS:
        x = low.to(tl.float32)
        y = high.to(tl.float32)
        if QK_NORM:
            scale = 1.0 / tl.sqrt((tl.sum(x * x, axis=0) + tl.sum(y * y, axis=0)) / HEAD_DIM + epsilon)
            if head < HEADS:
                weight_low = tl.load(q_norm + at, inside, 0.0).to(tl.float32)
                weight_high = tl.load(q_norm + HALF + at, inside, 0.0).to(tl.float32)
            else:
                weight_low = tl.load(k_norm + at, inside, 0.0).to(tl.float32)
                weight_high = tl.load(k_norm + HALF + at, inside, 0.0).to(tl.float32)
            x = ((x * scale).to(dtype).to(tl.float32) * weight_low).to(dtype).to(tl.float32)
            y = ((y * scale).to(dtype).to(tl.float32) * weight_high).to(dtype).to(tl.float32)
        angle = tl.load(positions + row) * HEAD_DIM + at
        cos_low = tl.load(cos + angle, inside, 0.0).to(tl.float32)
        cos_high = tl.load(cos + angle + HALF, inside, 0.0).to(tl.float32)
        sin_low = tl.load(sin + angle, inside, 0.0).to(tl.float32)
        sin_high = tl.load(sin + angle + HALF, inside, 0.0).to(tl.float32)
        low = ((x * cos_low).to(dtype).to(tl.float32) - (y * sin_low).to(dtype).to(tl.float32)).to(dtype)
        high = ((y * cos_high).to(dtype).to(tl.float32) + (x * sin_high).to(dtype).to(tl.float32)).to(dtype)
    if head < HEADS:
        out = queries + (row * HEADS + head) * HEAD_DIM + at
        tl.store(out, low, inside)
        tl.store(out + HALF, high, inside)
    else:
        record = rows + row * ROW_FIELDS
        place = tl.load(record + 3)
        if place >= 0:  # a row of padding is stored nowhere
            kept = head - HEADS
            kind = kept // KV_HEADS
            layer_stride = tl.load(record + 1) * HEAD_DIM
            capacity = tl.load(record + 2)
            start = tl.load(record) * UNIT + layer * layer_stride + kind * (layer_stride // 2)
            out = anchor + start + ((kept % KV_HEADS) * capacity + place) * HEAD_DIM + at
            tl.store(out, low, inside)
            tl.store(out + HALF, high, inside)


class TritonKernels:
    """Launches for one target. Everything that they read or write has a fixed address, so a CUDA graph can hold them."""

    def __init__(self, target: Target, rope: tuple[torch.Tensor, torch.Tensor], most_rows: int) -> None:
        c = target.config
        self._config = c
        self._cos, self._sin = (table.contiguous() for table in rope)
        self._unit = UNIT_BYTES // target.dtype.itemsize
        wide = {"dtype": torch.float32, "device": target.device}
        # Of each part of a row's keys: the sum of values and, of the scores, the maximum and the sum of exponentials.
        self._sums = torch.zeros(SPLITS, most_rows, c.heads, c.head_dim, **wide)
        self._scores = torch.zeros(SPLITS, most_rows, c.heads, 2, **wide)

    def add_norm(
        self, x: torch.Tensor, delta: torch.Tensor | None, weight: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """x and delta [rows, H] -> their sum, and that normed and weighted."""
        rows, size = x.shape
        total = x if delta is None else torch.empty_like(x)
        normed = torch.empty_like(x)
        block = triton.next_power_of_2(size)
        _add_norm[(rows,)](
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
        _gate[(rows, triton.cdiv(size, _GATE_BLOCK))](gate_up, out, SIZE=size, BLOCK=_GATE_BLOCK, num_warps=4)
        return out

    def rotate_store(self, inputs: Inputs, index: int, layer: Layer, qkv: torch.Tensor) -> torch.Tensor:
        """qkv [rows, (heads + 2 kv_heads) head_dim] -> rotated queries; keys and values go to their slots."""
        c = self._config
        queries = qkv.new_empty(qkv.shape[0], c.heads, c.head_dim)
        normed = layer.q_norm is not None
        _rotate_store[(qkv.shape[0], c.heads + 2 * c.kv_heads)](
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
