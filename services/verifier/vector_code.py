"""The two inner parts of attention as LLVM vector code, for whatever vector instructions the processor has.

numba's loops would sum every product of a query and a key by itself, which takes longer than the product. Here as many
keys as a vector has lanes are summed together. bfloat16 is read as pairs, so vectors hold the even and the odd elements
of a row by turns; `placed` says where an element is.
"""
# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from dartspec.services.verifier.loops import inlined

_FLOAT, _I32, _I64, _BYTE = ir.FloatType(), ir.IntType(32), ir.IntType(64), ir.IntType(8)
_MOST_LANES = 16
# Vectors of queries or sums that are kept in registers at a time.
_KEPT = 16
_CACHE_LINE = 64


def lanes(head_dim: int, dtype: torch.dtype) -> int:
    """Lanes of the vectors, and keys of a step. Less than 2: there is no such code for heads of that size."""
    words = head_dim * dtype.itemsize // 4
    return min(words & -words, _MOST_LANES) if words * 4 == head_dim * dtype.itemsize else 0


@inlined
def placed(i, width, kind):
    """Place of element i of a row in vectors of ``width`` lanes."""
    if kind is not np.uint16:
        return i
    pair = 2 * width
    return i // pair * pair + i % pair // 2 + width * (i % 2)


@intrinsic(prefer_literal=True)
def scores(_, queries, keys, ahead, out, stride, group, head_dim, width, kind):
    """Products of ``group`` queries with ``width`` keys.

    queries: float32 [group, head_dim], each as `placed` says; keys: int64 [width], addresses; ahead: the same of what
    is read soon; out: float32 [group, stride]; all by address, the others constants.
    """
    shape = _Shape(stride, group, head_dim, width, kind)
    return types.void(queries, keys, ahead, out, stride, group, head_dim, width, kind), shape.scores


@intrinsic(prefer_literal=True)
def mix(_, weights, values, ahead, out, stride, group, head_dim, width, kind):
    """Adds ``width`` values, each times its weight, to ``group`` sums.

    weights: float32 [group, stride]; values: int64 [width], addresses; ahead: the same of what is read soon; out:
    float32 [group, head_dim], each as `placed` says; all by address, the others constants.
    """
    shape = _Shape(stride, group, head_dim, width, kind)
    return types.void(weights, values, ahead, out, stride, group, head_dim, width, kind), shape.mix


class _Shape:
    """Writes the code for one shape of heads."""

    def __init__(self, stride: Any, group: Any, head_dim: Any, width: Any, kind: Any) -> None:
        self._stride, self._group, self._head_dim = stride.literal_value, group.literal_value, head_dim.literal_value
        self._width = width.literal_value
        self._short = kind.dtype == types.uint16
        self._parts = self._head_dim // self._width
        self._vector, self._integers = ir.VectorType(_FLOAT, self._width), ir.VectorType(_I32, self._width)

    def scores(self, context, builder, _signature, args):
        queries, keys, ahead, out = args[:4]
        for heads in self._chunks():
            asked = {head: self._floats(builder, queries, 4 * head * self._head_dim) for head in heads}
            products = {head: [] for head in heads}
            for number in range(self._width):
                key = self._row(builder, keys, ahead, number)
                for head in heads:
                    product = builder.fmul(asked[head][0], key[0])
                    for part in range(1, self._parts):
                        product = self._fused(builder, asked[head][part], key[part], product)
                    products[head].append(product)
            for head in heads:
                self._save(builder, self._sums(builder, products[head]), out, 4 * head * self._stride)
        return context.get_dummy_value()

    def mix(self, context, builder, _signature, args):
        weights, values, ahead, out = args[:4]
        everywhere = ir.Constant(self._integers, [0] * self._width)
        for heads in self._chunks():
            mixed = {head: self._floats(builder, out, 4 * head * self._head_dim) for head in heads}
            for number in range(self._width):
                value = self._row(builder, values, ahead, number)
                for head in heads:
                    weight = _load(builder, weights, 4 * (head * self._stride + number), _FLOAT)
                    nothing = ir.Constant(self._vector, ir.Undefined)
                    first = builder.insert_element(nothing, weight, ir.Constant(_I32, 0))
                    spread = builder.shuffle_vector(first, first, everywhere)
                    mixed[head] = [
                        self._fused(builder, spread, part, total)
                        for part, total in zip(value, mixed[head], strict=True)
                    ]
            for head in heads:
                for part, total in enumerate(mixed[head]):
                    self._save(builder, total, out, 4 * (head * self._head_dim + self._width * part))
        return context.get_dummy_value()

    def _chunks(self) -> list[range]:
        """Heads whose vectors fit into registers together."""
        step = max(_KEPT // self._parts, 1)
        return [range(first, min(first + step, self._group)) for first in range(0, self._group, step)]

    def _floats(self, builder, address, first):
        """A row of float32 as vectors."""
        return [_load(builder, address, first + 4 * self._width * part, self._vector) for part in range(self._parts)]

    def _row(self, builder, addresses, ahead, number):
        """A key or value as vectors, by the number of its address. The row of that number in ``ahead`` is asked for."""
        address = _load(builder, addresses, 8 * number, _I64, 8)
        later = _load(builder, ahead, 8 * number, _I64, 8)
        for offset in range(0, self._head_dim * (2 if self._short else 4), _CACHE_LINE):
            _ask_for(builder, later, offset)
        if not self._short:
            return self._floats(builder, address, 0)
        found = []
        for pair in range(self._parts // 2):
            both = _load(builder, address, 4 * self._width * pair, self._integers, 2)
            even = builder.shl(both, ir.Constant(self._integers, [16] * self._width))
            odd = builder.and_(both, ir.Constant(self._integers, [0xFFFF0000] * self._width))
            found += [builder.bitcast(even, self._vector), builder.bitcast(odd, self._vector)]
        return found

    def _fused(self, builder, x, y, z):
        """x * y + z."""
        function = ir.FunctionType(self._vector, [self._vector] * 3)
        called = builder.module.declare_intrinsic(f"llvm.fmuladd.v{self._width}f32", (), function)
        return builder.call(called, [x, y, z])

    def _sums(self, builder, vectors):
        """``width`` vectors -> the vector of their sums. Each step adds halves and leaves half as many vectors."""
        distance, width = self._width // 2, self._width
        while distance:
            near = [width + (lane ^ distance) if lane & distance else lane for lane in range(width)]
            far = [width + lane if lane & distance else lane | distance for lane in range(width)]
            masks = ir.Constant(self._integers, near), ir.Constant(self._integers, far)
            half = len(vectors) // 2
            vectors = [
                builder.fadd(*(builder.shuffle_vector(x, y, mask) for mask in masks))
                for x, y in zip(vectors[:half], vectors[half:], strict=True)
            ]
            distance //= 2
        return vectors[0]

    def _save(self, builder, value, address, offset):
        builder.store(value, _at(builder, address, offset, self._vector)).align = 4


def _at(builder, address, offset, kind):
    return builder.inttoptr(builder.add(address, ir.Constant(_I64, offset)), kind.as_pointer())


def _load(builder, address, offset, kind, align=4):
    value = builder.load(_at(builder, address, offset, kind))
    value.align = align
    return value


def _ask_for(builder, address, offset):
    """Have memory brought into the caches; harmless wherever it is."""
    function = ir.FunctionType(ir.VoidType(), [_BYTE.as_pointer(), _I32, _I32, _I32])
    read, keep, data = ir.Constant(_I32, 0), ir.Constant(_I32, 3), ir.Constant(_I32, 1)
    prefetch = builder.module.declare_intrinsic("llvm.prefetch.p0", (), function)
    builder.call(prefetch, [_at(builder, address, offset, _BYTE), read, keep, data])
