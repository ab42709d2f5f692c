"""Attention of static inputs as a compiled loop. A piece is an item of them, for one key head.

What a row attends to is taken in the order of its text: the prefix, then those rows of its segment that it sees. So its
result is bitwise the same wherever in a tree it stands, whatever shares the pass, and in plain decoding.
"""
# mypy: allow-untyped-defs

from __future__ import annotations

import numpy as np
import torch
from numba import carray

from dartspec.services.verifier.loops import SOURCES, Loop, kind_of, lowest_bit, numbers, pointer, stored, take, widened
from dartspec.services.verifier.static_inputs import ITEM_FIELDS, UNIT_BYTES, WORDS
from dartspec.services.verifier.vector_code import KEYS, lanes, mix, scores, turn, weigh

_LOWEST = np.float32(-1e30)
_ZERO, _ONE = np.float32(0), np.float32(1)


def attention_loop(dtype: torch.dtype, heads: int, kv_heads: int, head_dim: int, tile: int) -> Loop | None:
    """The loop for a shape of heads and items of at most ``tile`` rows; None: there is none for heads of that size.

    Its numbers are: rows, layer; and addresses: items, queries [rows, heads, head_dim], visible words, anchor, out (as
    the queries).
    """
    kind, sources = kind_of(dtype), SOURCES
    group, width, size = heads // kv_heads, lanes(head_dim, dtype), dtype.itemsize
    if width < 2:
        return None
    scale, per_word = np.float32(head_dim**-0.5), 4 // size

    def attend(block):
        rows, layer, items_at, queries_at, visible_at, anchor, out_at = numbers(block, 7, sources)
        queries = carray(pointer(queries_at), (rows, heads, head_dim), kind)
        out = carray(pointer(out_at), (rows, heads, head_dim), kind)
        visible = carray(pointer(visible_at), (rows, WORDS), np.int64)
        asked = np.empty((tile, group, head_dim), np.float32)
        sums = np.empty((tile, group, head_dim), np.float32)
        most, total = np.empty((tile, group), np.float32), np.empty((tile, group), np.float32)
        weights, turned = np.empty((group, KEYS), np.float32), np.zeros((head_dim, KEYS), np.float32)
        keys, values, later = np.empty(KEYS, np.int64), np.empty(KEYS, np.int64), np.empty(KEYS, np.int64)
        keys_at, values_at, later_at = keys.ctypes.data, values.ctypes.data, later.ctypes.data
        weights_at, turned_at = weights.ctypes.data, turned.ctypes.data
        asked_at, sums_at = asked.ctypes.data, sums.ctypes.data
        most_at, total_at = most.ctypes.data, total.ctypes.data
        row_floats, row_bytes = 4 * group * head_dim, head_dim * size
        while True:
            piece = take(block)
            if piece < 0:
                return
            item = carray(pointer(items_at + 8 * ITEM_FIELDS * (piece // kv_heads)), ITEM_FIELDS, np.int64)
            kv_head = piece % kv_heads
            first_row, count, prefix = item[0], item[1], item[5]
            to_value = item[3] * row_bytes // 2
            first = anchor + item[2] * UNIT_BYTES + layer * item[3] * row_bytes + kv_head * item[4] * row_bytes
            for row in range(count):
                for head in range(group):
                    most[row, head], total[row, head] = _LOWEST, _ZERO
                    for i in range(head_dim):
                        asked[row, head, i] = widened(queries[first_row + row, kv_head * group + head, i]) * scale
                        sums[row, head, i] = _ZERO
            # Keys of the prefix that fill whole blocks are the same for all rows.
            common = prefix // KEYS * KEYS
            for begin in range(0, common, KEYS):
                for key in range(KEYS):
                    keys[key] = first + (begin + key) * row_bytes
                    values[key] = keys[key] + to_value
                    later[key] = first + min(begin + KEYS + key, prefix - 1) * row_bytes
                for step in range(0, KEYS, width):
                    turn(keys_at + 8 * step, values_at + 8 * step, turned_at + 4 * step, head_dim, width, kind)
                for row in range(count):
                    scores(asked_at + row * row_floats, turned_at, weights_at, group, head_dim)
                    to, state = sums_at + row * row_floats, 4 * group * row
                    weigh(weights_at, most_at + state, total_at + state, to, group, head_dim)
                    for step in range(0, KEYS, width):
                        of, at, ahead = weights_at + 4 * step, values_at + 8 * step, later_at + 8 * step
                        mix(of, at, ahead, to, group, head_dim, width, kind)
            for row in range(count):
                done = common  # keys of the prefix that were taken
                word, bits = 0, visible[first_row + row, 0]  # where the rows of the segment are that were not
                while True:
                    found = 0
                    while found < KEYS and done < prefix:
                        keys[found] = first + done * row_bytes
                        found, done = found + 1, done + 1
                    while found < KEYS:
                        if bits:
                            keys[found] = first + (prefix + 64 * word + lowest_bit(bits)) * row_bytes
                            found, bits = found + 1, bits & (bits - 1)
                        elif word < WORDS - 1:
                            word += 1
                            bits = visible[first_row + row, word]
                        else:
                            break
                    if not found:
                        break
                    whole = -(-found // width) * width
                    for key in range(found, whole):
                        keys[key] = keys[found - 1]  # read, and its weight is as good as 0
                    for key in range(whole):
                        values[key] = keys[key] + to_value
                    for step in range(0, whole, width):
                        turn(keys_at + 8 * step, values_at + 8 * step, turned_at + 4 * step, head_dim, width, kind)
                    scores(asked_at + row * row_floats, turned_at, weights_at, group, head_dim)
                    for head in range(group):
                        for key in range(found, KEYS):
                            weights[head, key] = _LOWEST
                    to, state = sums_at + row * row_floats, 4 * group * row
                    weigh(weights_at, most_at + state, total_at + state, to, group, head_dim)
                    for step in range(0, whole, width):
                        of, at = weights_at + 4 * step, values_at + 8 * step
                        mix(of, at, at, to, group, head_dim, width, kind)
                for head in range(group):
                    share = _ONE / total[row, head] if total[row, head] > _ZERO else _ZERO
                    of, to = sums[row, head], out[first_row + row, kv_head * group + head]
                    for begin in range(0, head_dim, per_word * width):
                        for lane in range(width):
                            for element in range(per_word):
                                value = of[begin + width * element + lane] * share
                                to[begin + per_word * lane + element] = stored(value, kind)

    return Loop(attend)
