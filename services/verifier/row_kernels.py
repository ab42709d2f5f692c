"""Triton kernels that work on one row at a time: norms, the gate, rotation and the caches' writes."""
# Triton's compile-time parameters are in capitals, and its own types are those of the compiler.
# ruff: noqa: N803, N806
# mypy: allow-untyped-defs

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def add_norm(
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
def gate(gate_up, out, SIZE: tl.constexpr, BLOCK: tl.constexpr):
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
def rotate_store(
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
            head_stride = tl.load(record + 2)
            start = tl.load(record) * UNIT + layer * layer_stride + kind * (layer_stride // 2)
            out = anchor + start + ((kept % KV_HEADS) * head_stride + place) * HEAD_DIM + at
            tl.store(out, low, inside)
            tl.store(out + HALF, high, inside)
