"""Attention of static inputs as a compiled loop. A piece is an item of them, for one key head.

What a row attends to is taken in the order of its text: the prefix, then those rows of its segment that it sees. So its
result is bitwise the same wherever in a tree it stands, whatever shares the pass, and in plain decoding.
"""
# mypy: allow-untyped-defs

from __future__ import annotations

import numpy as np
import torch
from numba import carray, njit

from dartspec.services.verifier.loops import FAST, SOURCES, Loop, exp, kind_of, numbers, pointer, stored, take, widened
from dartspec.services.verifier.static_inputs import ITEM_FIELDS, UNIT_BYTES, WORDS
from dartspec.services.verifier.vector_code import lanes, mix, placed, scores

# Keys whose weights are made together; the largest score so far is kept up to date once for all of them.
_KEYS = 64
_LOWEST = np.float32(-1e30)
_ZERO, _ONE = np.float32(0), np.float32(1)


@njit(error_model="numpy", fastmath=FAST)
def _weigh(weights, most, total, sums):
    """Scores [group, _KEYS] -> weights by the largest score so far; total and sums so far are fitted to it."""
    largest = np.empty(_KEYS // 2, np.float32)
    for head in range(len(total)):
        # By halves: a maximum of one score after another would not become vector instructions.
        half = _KEYS // 2
        for key in range(half):
            largest[key] = max(weights[head, key], weights[head, half + key])
        while half > 1:
            half //= 2
            for key in range(half):
                largest[key] = max(largest[key], largest[half + key])
        new = max(most[head], largest[0])
        fit = exp(most[head] - new)
        added = _ZERO
        for key in range(_KEYS):
            weight = exp(weights[head, key] - new)
            weights[head, key] = weight
            added += weight
        most[head], total[head] = new, total[head] * fit + added
        for i in range(sums.shape[1]):
            sums[head, i] *= fit


def attention_loop(dtype: torch.dtype, heads: int, kv_heads: int, head_dim: int, tile: int) -> Loop | None:
    """The loop for a shape of heads and items of at most ``tile`` rows; None: there is none for heads of that size.

    Its numbers are: rows, layer; and addresses: items, queries [rows, heads, head_dim], visible words, anchor, out (as
    the queries).
    """
    kind, sources = kind_of(dtype), SOURCES
    group, width, size = heads // kv_heads, lanes(head_dim, dtype), dtype.itemsize
    if width < 2:
        return None
    scale = np.float32(head_dim**-0.5)

    def attend(block):
        rows, layer, items_at, queries_at, visible_at, anchor, out_at = numbers(block, 7, sources)
        queries = carray(pointer(queries_at), (rows, heads, head_dim), kind)
        out = carray(pointer(out_at), (rows, heads, head_dim), kind)
        visible = carray(pointer(visible_at), (rows, WORDS), np.int64)
        asked = np.empty((tile, group, head_dim), np.float32)
        sums = np.empty((tile, group, head_dim), np.float32)
        most, total = np.empty((tile, group), np.float32), np.empty((tile, group), np.float32)
        weights = np.empty((group, _KEYS), np.float32)
        keys, values, later = np.empty(_KEYS, np.int64), np.empty(_KEYS, np.int64), np.empty(_KEYS, np.int64)
        keys_at, values_at, later_at = keys.ctypes.data, values.ctypes.data, later.ctypes.data
        weights_at = weights.ctypes.data
        while True:
            piece = take(block)
            if piece < 0:
                return
            item = carray(pointer(items_at + 8 * ITEM_FIELDS * (piece // kv_heads)), ITEM_FIELDS, np.int64)
            kv_head = piece % kv_heads
            first_row, count, prefix = item[0], item[1], item[5]
            row_bytes = head_dim * size
            to_value = item[3] * row_bytes // 2
            first = anchor + item[2] * UNIT_BYTES + layer * item[3] * row_bytes + kv_head * item[4] * row_bytes
            for row in range(count):
                for head in range(group):
                    most[row, head], total[row, head] = _LOWEST, _ZERO
                    for i in range(head_dim):
                        query = widened(queries[first_row + row, kv_head * group + head, i])
                        asked[row, head, placed(i, width, kind)] = query * scale
                        sums[row, head, i] = _ZERO
            # Keys of the prefix that fill whole blocks are the same for all rows.
            common = prefix // _KEYS * _KEYS
            for begin in range(0, common, _KEYS):
                for key in range(_KEYS):
                    keys[key] = first + (begin + key) * row_bytes
                    values[key] = keys[key] + to_value
                    later[key] = first + min(begin + _KEYS + key, prefix - 1) * row_bytes
                for row in range(count):
                    for step in range(0, _KEYS, width):
                        at = asked[row].ctypes.data
                        to = weights_at + 4 * step
                        scores(at, keys_at + 8 * step, values_at + 8 * step, to, _KEYS, group, head_dim, width, kind)
                    _weigh(weights, most[row], total[row], sums[row])
                    for step in range(0, _KEYS, width):
                        of, to = weights_at + 4 * step, sums[row].ctypes.data
                        mix(of, values_at + 8 * step, later_at + 8 * step, to, _KEYS, group, head_dim, width, kind)
            for row in range(count):
                done, other = common, 0  # keys of the prefix that were taken; the next row of the segment
                while True:
                    found = 0
                    while found < _KEYS and done < prefix:
                        keys[found] = first + done * row_bytes
                        found, done = found + 1, done + 1
                    while found < _KEYS and other < 64 * WORDS:
                        if visible[first_row + row, other >> 6] >> (other & 63) & 1:
                            keys[found] = first + (prefix + other) * row_bytes
                            found += 1
                        other += 1
                    if not found:
                        break
                    whole = -(-found // width) * width
                    for key in range(found, whole):
                        keys[key] = keys[found - 1]  # read, and its weight is as good as 0
                    for key in range(whole):
                        values[key] = keys[key] + to_value
                    for step in range(0, whole, width):
                        at = asked[row].ctypes.data
                        to = weights_at + 4 * step
                        scores(at, keys_at + 8 * step, values_at + 8 * step, to, _KEYS, group, head_dim, width, kind)
                    for head in range(group):
                        for key in range(found, _KEYS):
                            weights[head, key] = _LOWEST
                    _weigh(weights, most[row], total[row], sums[row])
                    for step in range(0, whole, width):
                        of, to = weights_at + 4 * step, sums[row].ctypes.data
                        mix(of, values_at + 8 * step, values_at + 8 * step, to, _KEYS, group, head_dim, width, kind)
                for head in range(group):
                    share = _ONE / total[row, head] if total[row, head] > _ZERO else _ZERO
                    for i in range(head_dim):
                        value = sums[row, head, placed(i, width, kind)] * share
                        out[first_row + row, kv_head * group + head, i] = stored(value, kind)

    return Loop(attend)
