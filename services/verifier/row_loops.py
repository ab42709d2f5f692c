"""Compiled loops that work on one row at a time: norms, the gate, rotation and the caches' writes.

The twins of `row_kernels.py` for processors, rounded at the same places. A piece is a row.
"""
# mypy: allow-untyped-defs

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numba import carray

from dartspec.services.verifier.loops import (
    SOURCES,
    Loop,
    exp,
    kind_of,
    numbers,
    pointer,
    rounded,
    stored,
    take,
    widened,
)
from dartspec.services.verifier.static_inputs import ROW_FIELDS

_ONE = np.float32(1.0)


class RowLoops(NamedTuple):
    """For one type of element and one shape of heads. The numbers of a call are addresses unless they say otherwise."""

    # rows, size; x, delta (0: none), weight, total, normed
    add_norm: Loop
    # rows, size; gate and up, out
    gate: Loop
    # rows, layer; qkv, queries, table of rows, positions, cosines, sines, norms of queries and keys (0: none), anchor
    rotate_store: Loop


def row_loops(dtype: torch.dtype, heads: int, kv_heads: int, head_dim: int, epsilon: float) -> RowLoops:
    """Compile them, or find them compiled."""
    kind, sources = kind_of(dtype), SOURCES
    half = head_dim // 2
    unit = 16 // np.dtype(kind).itemsize
    small = np.float32(epsilon)

    def add_norm(block):
        rows, size, x_at, delta_at, weight_at, total_at, normed_at = numbers(block, 7, sources)
        x = carray(pointer(x_at), (rows, size), kind)
        delta = carray(pointer(delta_at), (rows, size), kind)
        weight = carray(pointer(weight_at), size, kind)
        total = carray(pointer(total_at), (rows, size), kind)
        normed = carray(pointer(normed_at), (rows, size), kind)
        while True:
            row = take(block)
            if row < 0:
                return
            if delta_at:
                for i in range(size):
                    total[row, i] = stored(widened(x[row, i]) + widened(delta[row, i]), kind)
            squares = np.float32(0)
            for i in range(size):
                value = widened(total[row, i])
                squares += value * value
            scale = _ONE / np.sqrt(squares / np.float32(size) + small)
            for i in range(size):
                normed[row, i] = stored(rounded(widened(total[row, i]) * scale, kind) * widened(weight[i]), kind)

    def gate(block):
        rows, size, source_at, out_at = numbers(block, 4, sources)
        source = carray(pointer(source_at), (rows, 2 * size), kind)
        out = carray(pointer(out_at), (rows, size), kind)
        while True:
            row = take(block)
            if row < 0:
                return
            for i in range(size):
                value = widened(source[row, i])
                active = rounded(value / (_ONE + exp(-value)), kind)
                out[row, i] = stored(active * widened(source[row, size + i]), kind)

    def rotate_store(block):
        rows, layer, qkv_at, queries_at, table_at, positions_at, cos_at, sin_at, q_norm_at, k_norm_at, anchor = numbers(
            block, 11, sources
        )
        qkv = carray(pointer(qkv_at), (rows, heads + 2 * kv_heads, head_dim), kind)
        queries = carray(pointer(queries_at), (rows, heads, head_dim), kind)
        table = carray(pointer(table_at), (rows, ROW_FIELDS), np.int64)
        positions = carray(pointer(positions_at), rows, np.int64)
        low, high = np.empty(half, np.float32), np.empty(half, np.float32)
        while True:
            row = take(block)
            if row < 0:
                return
            slot, layer_stride, head_stride, place = table[row, 0], table[row, 1], table[row, 2], table[row, 3]
            start = slot * unit + layer * layer_stride * head_dim
            angle = positions[row] * head_dim
            cos = carray(pointer(cos_at), angle + head_dim, kind)[angle:]
            sin = carray(pointer(sin_at), angle + head_dim, kind)[angle:]
            for head in range(heads + 2 * kv_heads):
                if head >= heads and place < 0:
                    break  # a row of padding is stored nowhere
                source = qkv[row, head]
                if head < heads:
                    target = queries[row, head]
                else:
                    kept = head - heads
                    at = start + kept // kv_heads * (layer_stride * head_dim // 2)
                    at += (kept % kv_heads * head_stride + place) * head_dim
                    target = carray(pointer(anchor + at * (16 // unit)), head_dim, kind)
                if head >= heads + kv_heads:
                    for i in range(head_dim):
                        target[i] = source[i]
                    continue
                for i in range(half):
                    low[i], high[i] = widened(source[i]), widened(source[half + i])
                norm_at = q_norm_at if head < heads else k_norm_at
                if norm_at:
                    weight = carray(pointer(norm_at), head_dim, kind)
                    squares = np.float32(0)
                    for i in range(half):
                        squares += low[i] * low[i] + high[i] * high[i]
                    scale = _ONE / np.sqrt(squares / np.float32(head_dim) + small)
                    for i in range(half):
                        low[i] = rounded(rounded(low[i] * scale, kind) * widened(weight[i]), kind)
                        high[i] = rounded(rounded(high[i] * scale, kind) * widened(weight[half + i]), kind)
                for i in range(half):
                    x, y = low[i], high[i]
                    turned = rounded(x * widened(cos[i]), kind) - rounded(y * widened(sin[i]), kind)
                    target[i] = stored(turned, kind)
                    turned = rounded(y * widened(cos[half + i]), kind) + rounded(x * widened(sin[half + i]), kind)
                    target[half + i] = stored(turned, kind)

    return RowLoops(Loop(add_norm), Loop(gate), Loop(rotate_store))
