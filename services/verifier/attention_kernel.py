"""Attention of a pass in the static layout, as two Triton kernels.

A session's keys are read where they lie, so sessions of any length and slab share a launch, and nothing is padded or
copied. The keys are cut into parts that different processors work on, and a second kernel joins the parts. Where the
cuts are follows from the length of the session's prefix alone: a row does not depend on its company.
"""
# Triton's compile-time parameters are in capitals, and its own types are those of the compiler.
# ruff: noqa: N803, N806
# mypy: allow-untyped-defs

from __future__ import annotations

import triton
import triton.language as tl

# At most so many parts, of at least so many keys each.
SPLITS = 16
KEYS = 128
_BLOCK: tl.constexpr = tl.constexpr(64)


@triton.jit
def _parts(length, SPLITS: tl.constexpr, KEYS: tl.constexpr):
    """Number of parts behind a prefix of ``length`` tokens, and the keys of each but the last."""
    parts = tl.minimum((length + KEYS) // KEYS, SPLITS)
    each = (length + parts) // parts  # of length + 1 keys, rounded up
    return parts, (each + _BLOCK - 1) // _BLOCK * _BLOCK


@triton.jit(do_not_specialize=["layer", "all_rows"])
def attend_part(
    queries,
    items,
    visible,
    sums,
    scores,
    anchor,
    layer,
    all_rows,
    scale,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    TILE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    WORDS: tl.constexpr,
    ITEM_FIELDS: tl.constexpr,
    UNIT: tl.constexpr,
    SPLITS: tl.constexpr,
    KEYS: tl.constexpr,
):
    """Some rows of a session, the heads that share one key head, one part of the keys."""
    record = items + tl.program_id(0) * ITEM_FIELDS
    kv_head = tl.program_id(1)
    part = tl.program_id(2)
    first = tl.load(record)
    count = tl.load(record + 1)
    if count == 0:
        return
    head_stride = tl.load(record + 4)
    length = tl.load(record + 5).to(tl.int32)
    # Behind the prefix lie the rows of this pass; a row sees none that comes after it.
    end = length + tl.load(record + 6).to(tl.int32) + count.to(tl.int32)
    parts, each = _parts(length, SPLITS, KEYS)
    if part >= parts:
        return
    begin = part * each
    if part < parts - 1:
        end = tl.minimum(end, begin + each)

    ROWS: tl.constexpr = TILE * GROUP
    SHARED: tl.constexpr = HEADS // KV_HEADS
    m = tl.arange(0, ROWS)
    row = first + m // GROUP
    head = kv_head * SHARED + m % GROUP
    real = (m // GROUP < count) & (m % GROUP < SHARED)
    d = tl.arange(0, BLOCK_D)
    whole = d < HEAD_DIM
    query = tl.load(
        queries + (row * HEADS + head)[:, None] * HEAD_DIM + d[None, :], real[:, None] & whole[None, :], 0.0
    )

    layer_stride = tl.load(record + 3) * HEAD_DIM
    keys = anchor + (tl.load(record + 2) * UNIT + layer * layer_stride + kv_head * head_stride * HEAD_DIM)
    values = keys + layer_stride // 2
    top = tl.full([ROWS], float("-inf"), tl.float32)
    norm = tl.zeros([ROWS], tl.float32)
    mixed = tl.zeros([ROWS, BLOCK_D], tl.float32)
    for start in range(begin, end, _BLOCK):
        at = start + tl.arange(0, _BLOCK)
        inside = at < end
        place = at[:, None] * HEAD_DIM + d[None, :]
        some = inside[:, None] & whole[None, :]
        key = tl.load(keys + place, some, 0.0)
        value = tl.load(values + place, some, 0.0)
        score = tl.dot(query, tl.trans(key), input_precision="ieee") * scale
        score = tl.where(inside[None, :], score, float("-inf"))
        if start + _BLOCK > length:
            own = at - length  # which row of the session's in this pass
            is_own = inside & (own >= 0)
            safe = tl.where(is_own, own, 0)
            word = tl.load(visible + row[:, None] * WORDS + (safe // 64)[None, :], real[:, None] & is_own[None, :], 0)
            sees = (word >> (safe % 64)[None, :].to(tl.int64)) & 1
            score = tl.where(is_own[None, :] & (sees == 0), float("-inf"), score)
        higher = tl.maximum(top, tl.max(score, 1))
        base = tl.where(higher == float("-inf"), 0.0, higher)  # nothing visible yet
        weight = tl.exp(score - base[:, None])
        shrink = tl.exp(top - base)
        norm = norm * shrink + tl.sum(weight, 1)
        mixed = mixed * shrink[:, None] + tl.dot(weight.to(value.dtype), value, input_precision="ieee")
        top = higher

    slot = (part * all_rows + row) * HEADS + head
    tl.store(sums + slot[:, None] * HEAD_DIM + d[None, :], mixed, real[:, None] & whole[None, :])
    tl.store(scores + slot * 2, top, real)
    tl.store(scores + slot * 2 + 1, norm, real)


@triton.jit(do_not_specialize=["all_rows"])
def combine(
    sums,
    scores,
    rows,
    out,
    all_rows,
    ROW_FIELDS: tl.constexpr,
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    SPLITS: tl.constexpr,
    KEYS: tl.constexpr,
):
    """One head of one row: the parts of its keys become one."""
    row = tl.program_id(0)
    head = tl.program_id(1)
    d = tl.arange(0, BLOCK_D)
    whole = d < HEAD_DIM
    target = out + (row * HEADS + head) * HEAD_DIM + d
    record = rows + row * ROW_FIELDS
    if tl.load(record + 3) < 0:
        tl.store(target, tl.zeros([BLOCK_D], tl.float32).to(out.dtype.element_ty), whole)
        return
    parts, _each = _parts(tl.load(record + 4).to(tl.int32), SPLITS, KEYS)
    part = tl.arange(0, SPLITS)
    slot = (part * all_rows + row) * HEADS + head
    top = tl.load(scores + slot * 2, part < parts, float("-inf"))
    norm = tl.load(scores + slot * 2 + 1, part < parts, 0.0)
    weight = tl.exp(top - tl.max(top, 0))  # every row sees itself, so the maximum is finite
    mixed = tl.load(sums + slot[:, None] * HEAD_DIM + d[None, :], (part < parts)[:, None] & whole[None, :], 0.0)
    joined = tl.sum(mixed * weight[:, None], 0) / tl.sum(norm * weight, 0)
    tl.store(target, joined.to(out.dtype.element_ty), whole)
