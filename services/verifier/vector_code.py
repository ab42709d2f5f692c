"""The inner parts of attention as LLVM vector code, for whatever vector instructions the processor has.

numba's loops would sum the products of a query and a key, which takes longer than to make them. Here keys are turned
first, so that a vector holds an element of many keys and nothing is summed across. bfloat16 is read as pairs, and sums
of values stay like that: a vector of even elements, one of odd elements, and so on.
"""
# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

from typing import Any

import torch
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from dartspec.services.verifier.loops import EXP

# Keys of a block; their scores are made and weighed together.
KEYS = 64
# Scores of so many keys are a vector, and elements of a row are, if heads have a multiple of it.
LANES = 16
_VECTORS = KEYS // LANES
# Vectors of sums that are kept in registers at a time.
_KEPT = 16
# Steps of a sum over a head's elements that are written out.
_UNROLLED = 4
_CACHE_LINE = 64

_FLOAT, _I32, _I64, _BYTE = ir.FloatType(), ir.IntType(32), ir.IntType(64), ir.IntType(8)
_SCORES = ir.VectorType(_FLOAT, LANES)


def lanes(head_dim: int, dtype: torch.dtype) -> int:
    """Lanes of the vectors that rows are read as. Less than 2: there is no such code for heads of that size."""
    words = head_dim * dtype.itemsize // 4
    return min(words & -words, LANES) if words * 4 == head_dim * dtype.itemsize else 0


@intrinsic(prefer_literal=True)
def turn(_, keys, ahead, out, head_dim, width, kind):
    """Keys to where `scores` reads them.

    keys: int64 [width], addresses; ahead: the same of what is read soon; out: the first of ``width`` columns of float32
    [head_dim, KEYS]; all by address, the others constants.
    """
    rows = _Rows(head_dim, width, kind)

    def code(context, builder, _signature, args):
        keys, ahead, out = args[:3]
        found = [rows.words(builder, keys, ahead, number) for number in range(rows.width)]
        for part in range(len(found[0])):
            turned = _turned(builder, [words[part] for words in found])
            for number, words in enumerate(turned):
                for element, values in enumerate(rows.floats_of(builder, words)):
                    place = (part * rows.width + number) * rows.per_word + element
                    _save(builder, values, out, 4 * KEYS * place)
        return context.get_dummy_value()

    return types.void(keys, ahead, out, head_dim, width, kind), code


@intrinsic(prefer_literal=True)
def scores(_, queries, keys, out, group, head_dim):
    """Products of ``group`` queries with a block of keys, each summed in the order of the elements.

    queries: float32 [group, head_dim]; keys: as `turn` leaves them; out: float32 [group, KEYS]; all by address.
    """

    def code(context, builder, _signature, args):
        queries, keys, out = args[:3]
        size, zeros = head_dim.literal_value, ir.Constant(_SCORES, [0.0] * LANES)
        steps = _UNROLLED if size % _UNROLLED == 0 else 1
        for heads in _chunks(group.literal_value, _VECTORS):
            sums = {
                (head, part): cgutils.alloca_once_value(builder, zeros) for head in heads for part in range(_VECTORS)
            }
            for place in sums.values():
                builder.store(zeros, place)
            with cgutils.for_range(builder, ir.Constant(_I64, size // steps)) as loop:
                for step in range(steps):
                    element = builder.add(builder.mul(loop.index, ir.Constant(_I64, steps)), ir.Constant(_I64, step))
                    column = builder.add(keys, builder.mul(element, ir.Constant(_I64, 4 * KEYS)))
                    found = [_load(builder, column, 4 * LANES * part, _SCORES) for part in range(_VECTORS)]
                    query = builder.add(queries, builder.mul(element, ir.Constant(_I64, 4)))
                    for head in heads:
                        spread = broadcast(builder, _load(builder, query, 4 * size * head, _FLOAT), _SCORES)
                        for part in range(_VECTORS):
                            place = sums[head, part]
                            builder.store(_fused(builder, spread, found[part], builder.load(place)), place)
            for (head, part), place in sums.items():
                _save(builder, builder.load(place), out, 4 * (KEYS * head + LANES * part))
        return context.get_dummy_value()

    return types.void(queries, keys, out, group, head_dim), code


@intrinsic(prefer_literal=True)
def weigh(_, weights, most, total, sums, group, head_dim):
    """Scores of a block -> weights, by the largest score so far; totals and sums so far are fitted to it.

    weights: float32 [group, KEYS]; most, total: float32 [group]; sums: float32 [group, head_dim]; all by address.
    """

    def code(context, builder, _signature, args):
        weights, most, total, sums = args[:4]
        for head in range(group.literal_value):
            found = [_load(builder, weights, 4 * (KEYS * head + LANES * part), _SCORES) for part in range(_VECTORS)]
            before = _load(builder, most, 4 * head, _FLOAT)
            new = larger(builder, before, across(builder, found, larger))
            shift = broadcast(builder, new, _SCORES)
            made = [exp(builder, builder.fsub(part, shift)) for part in found]
            for part, values in enumerate(made):
                _save(builder, values, weights, 4 * (KEYS * head + LANES * part))
            fits = exp(builder, builder.fsub(broadcast(builder, before, _SCORES), shift))
            fit = builder.extract_element(fits, ir.Constant(_I32, 0))
            added = across(builder, made, lambda b, x, y: b.fadd(x, y))
            _save(builder, new, most, 4 * head)
            was = _load(builder, total, 4 * head, _FLOAT)
            _save(builder, builder.fadd(builder.fmul(was, fit), added), total, 4 * head)
            size, at = head_dim.literal_value, 0
            while at < size:
                width = min(LANES, 1 << (size - at).bit_length() - 1)
                kind = ir.VectorType(_FLOAT, width)
                part = _load(builder, sums, 4 * (size * head + at), kind)
                _save(builder, builder.fmul(part, broadcast(builder, fit, kind)), sums, 4 * (size * head + at))
                at += width
        return context.get_dummy_value()

    return types.void(weights, most, total, sums, group, head_dim), code


@intrinsic(prefer_literal=True)
def mix(_, weights, values, ahead, out, group, head_dim, width, kind):
    """Adds ``width`` values, each times its weight, to ``group`` sums.

    weights: the first of ``width`` columns of float32 [group, KEYS]; values: int64 [width], addresses; ahead: the same
    of what is read soon; out: float32 [group, head_dim], pairs apart; all by address, the others constants.
    """
    rows = _Rows(head_dim, width, kind)

    def code(context, builder, _signature, args):
        weights, values, ahead, out = args[:4]
        for heads in _chunks(group.literal_value, rows.parts):
            mixed = {head: rows.floats(builder, out, head) for head in heads}
            for number in range(rows.width):
                words = rows.words(builder, values, ahead, number)
                value = [part for word in words for part in rows.floats_of(builder, word)]
                for head in heads:
                    weight = broadcast(
                        builder, _load(builder, weights, 4 * (head * KEYS + number), _FLOAT), rows.vector
                    )
                    mixed[head] = [_fused(builder, weight, *pair) for pair in zip(value, mixed[head], strict=True)]
            for head in heads:
                for part, total in enumerate(mixed[head]):
                    _save(builder, total, out, 4 * (head * rows.size + rows.width * part))
        return context.get_dummy_value()

    return types.void(weights, values, ahead, out, group, head_dim, width, kind), code


class _Rows:
    """How rows of keys and values are read: as vectors of words, each a float32 or a pair of bfloat16."""

    def __init__(self, head_dim: Any, width: Any, kind: Any) -> None:
        self.size, self.width = head_dim.literal_value, width.literal_value
        self.per_word = 2 if kind.dtype == types.uint16 else 1
        self.parts = self.size // self.width
        self.vector, self._integers = ir.VectorType(_FLOAT, self.width), ir.VectorType(_I32, self.width)

    def floats(self, builder, address, number):
        """Row ``number`` of float32 rows."""
        return [
            _load(builder, address, 4 * (self.size * number + self.width * i), self.vector) for i in range(self.parts)
        ]

    def words(self, builder, addresses, ahead, number):
        """The words of the row whose address has that number. The row of that number in ``ahead`` is asked for."""
        address, later = (_load(builder, each, 8 * number, _I64, 8) for each in (addresses, ahead))
        for offset in range(0, 4 * self.size // self.per_word, _CACHE_LINE):
            _ask_for(builder, later, offset)
        count = self.parts // self.per_word
        return [_load(builder, address, 4 * self.width * i, self._integers, 4 // self.per_word) for i in range(count)]

    def floats_of(self, builder, words):
        """The first and, if there are two, the second element of each word."""
        if self.per_word == 1:
            return [builder.bitcast(words, self.vector)]
        low = builder.shl(words, ir.Constant(self._integers, [16] * self.width))
        high = builder.and_(words, ir.Constant(self._integers, [0xFFFF0000] * self.width))
        return [builder.bitcast(low, self.vector), builder.bitcast(high, self.vector)]


def _chunks(heads, vectors):
    """Heads whose vectors fit into registers together."""
    step = max(_KEPT // vectors, 1)
    return [range(first, min(first + step, heads)) for first in range(0, heads, step)]


def _turned(builder, rows):
    """A square matrix, one vector a row, turned: vector i holds element i of every row. By halves, quarters, ..."""
    width = len(rows)
    distance = width // 2
    while distance:
        near, far = _halves(width, distance)
        turned = list(rows)
        for i in range(width):
            if not i & distance:
                x, y = rows[i], rows[i + distance]
                turned[i] = builder.shuffle_vector(x, y, near)
                turned[i + distance] = builder.shuffle_vector(x, y, far)
        rows, distance = turned, distance // 2
    return rows


def _halves(width, distance):
    """Masks: of each pair of lanes so far apart, the nearer of two vectors side by side, and the farther."""
    near = [width + (lane ^ distance) if lane & distance else lane for lane in range(width)]
    far = [width + lane if lane & distance else lane | distance for lane in range(width)]
    integers = ir.VectorType(_I32, width)
    return ir.Constant(integers, near), ir.Constant(integers, far)


def across(builder, vectors, join):
    """All elements of some vectors joined to one."""
    while len(vectors) > 1:
        half = len(vectors) // 2
        vectors = [join(builder, *pair) for pair in zip(vectors[:half], vectors[half:], strict=True)]
    found, distance = vectors[0], LANES // 2
    while distance:
        other = [lane ^ distance for lane in range(LANES)]
        moved = builder.shuffle_vector(found, found, ir.Constant(ir.VectorType(_I32, LANES), other))
        found, distance = join(builder, found, moved), distance // 2
    return builder.extract_element(found, ir.Constant(_I32, 0))


def larger(builder, x, y):
    return builder.select(builder.fcmp_ordered(">", x, y), x, y)


def exp(builder, x):
    """exp of a vector, as `loops.exp` makes it."""
    integers = ir.VectorType(_I32, LANES)

    def every(value, kind=_SCORES):
        return ir.Constant(kind, [value] * LANES)

    def floor(value):
        return builder.call(_declared(builder, f"llvm.floor.v{LANES}f32", _SCORES, 1), [value])

    x = larger(builder, x, every(EXP.least))
    whole = floor(_fused(builder, x, every(EXP.log2_e), every(0.5)))
    x = _fused(builder, whole, every(-EXP.ln2_high), x)
    x = _fused(builder, whole, every(-EXP.ln2_low), x)
    y = every(EXP.powers[0])
    for power in EXP.powers[1:]:
        y = _fused(builder, y, x, every(power))
    y = builder.fadd(_fused(builder, builder.fmul(y, x), x, x), every(1.0))
    bits = builder.add(builder.fptosi(whole, integers), every(127, integers))
    return builder.fmul(y, builder.bitcast(builder.shl(bits, every(23, integers)), _SCORES))


def _fused(builder, x, y, z):
    """x * y + z."""
    name = f"llvm.fmuladd.v{x.type.count}f32"
    return builder.call(_declared(builder, name, x.type, 3), [x, y, z])


def _declared(builder, name, kind, arguments):
    return builder.module.declare_intrinsic(name, (), ir.FunctionType(kind, [kind] * arguments))


def broadcast(builder, value, vector):
    """A number in every lane."""
    first = builder.insert_element(ir.Constant(vector, ir.Undefined), value, ir.Constant(_I32, 0))
    everywhere = ir.Constant(ir.VectorType(_I32, vector.count), [0] * vector.count)
    return builder.shuffle_vector(first, first, everywhere)


def _at(builder, address, offset, kind):
    return builder.inttoptr(builder.add(address, ir.Constant(_I64, offset)), kind.as_pointer())


def _load(builder, address, offset, kind, align=4):
    value = builder.load(_at(builder, address, offset, kind))
    value.align = align
    return value


def _save(builder, value, address, offset):
    builder.store(value, _at(builder, address, offset, value.type)).align = 4


def _ask_for(builder, address, offset):
    """Have memory brought into the caches; harmless wherever it is."""
    function = ir.FunctionType(ir.VoidType(), [_BYTE.as_pointer(), _I32, _I32, _I32])
    read, keep, data = ir.Constant(_I32, 0), ir.Constant(_I32, 3), ir.Constant(_I32, 1)
    prefetch = builder.module.declare_intrinsic("llvm.prefetch.p0", (), function)
    builder.call(prefetch, [_at(builder, address, offset, _BYTE), read, keep, data])
