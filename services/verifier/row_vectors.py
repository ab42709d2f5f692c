"""Passes over parts of a row of logits, as LLVM vector code.

Comparisons with one level are a bit for each, so that few hits of many cost little; numba's loops would make a number
of every comparison and add those up. Sums and maxima fill the processor's widest registers, which numba's loops avoid.
"""
# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numba.np import arrayobj

from dartspec.services.verifier.vector_code import LANES, across, broadcast, exp, larger

# Elements of a part.
PART = 512
# Vectors that are worked on side by side.
_ABREAST = 4

_I16, _I32, _I64, _FLOAT = ir.IntType(16), ir.IntType(32), ir.IntType(64), ir.FloatType()
_VECTOR = ir.VectorType(_FLOAT, LANES)


@intrinsic
def reaching(_, values, first, level):
    """Which of values[first : first + LANES] are at least ``level``: bit i of the int64 is that of values[first + i].

    values: contiguous array of floats, of bits of bfloat16 as uint16, or of uint32. level: of the elements' type, or
    float32 for bits. All elements must be there.
    """

    def code(context, builder, signature, args):
        at = context.cast(builder, args[1], signature.args[1], types.int64)
        found = _loaded(context, builder, values, args[0], at)
        least = broadcast(builder, args[2], found.type)
        if values.dtype == types.uint32:
            reached = builder.icmp_unsigned(">=", found, least)
        else:
            reached = builder.fcmp_ordered(">=", found, least)
        return builder.zext(builder.bitcast(reached, _I16), _I64)

    return types.int64(values, first, level), code


@intrinsic
def largest_of_part(_, values, first):
    """The largest of values[first : first + PART], float32 or bits of bfloat16; a NaN if there is one."""

    def code(context, builder, signature, args):
        nothing = ir.Constant(_VECTOR, [float("-inf")] * LANES)
        most = [cgutils.alloca_once_value(builder, nothing) for _ in range(_ABREAST)]
        strange = cgutils.alloca_once_value(builder, ir.Constant(_I16, 0))
        for place, vector in _vectors(context, builder, signature, values, args, most):
            builder.store(larger(builder, builder.load(place), vector), place)
            nan = builder.bitcast(builder.fcmp_unordered("uno", vector, vector), _I16)
            builder.store(builder.or_(builder.load(strange), nan), strange)
        return found(builder, most, strange)

    def found(builder, most, strange):
        largest = across(builder, [builder.load(place) for place in most], larger)
        sound = builder.icmp_unsigned("==", builder.load(strange), ir.Constant(_I16, 0))
        return builder.select(sound, largest, ir.Constant(_FLOAT, float("nan")))

    return types.float32(values, first), code


@intrinsic
def weight_of_part(_, values, first, largest, factor):
    """Sum of exp((value - largest) * factor) of values[first : first + PART], float32 or bits of bfloat16.

    No value is above the largest; the factor is positive.
    """

    def code(context, builder, signature, args):
        zeros = ir.Constant(_VECTOR, [0.0] * LANES)
        sums = [cgutils.alloca_once_value(builder, zeros) for _ in range(_ABREAST)]
        shift, scale = broadcast(builder, args[2], _VECTOR), broadcast(builder, args[3], _VECTOR)
        for place, vector in _vectors(context, builder, signature, values, args, sums):
            weights = exp(builder, builder.fmul(builder.fsub(vector, shift), scale))
            builder.store(builder.fadd(builder.load(place), weights), place)
        return across(builder, [builder.load(place) for place in sums], lambda b, x, y: b.fadd(x, y))

    return types.float32(values, first, types.float32, types.float32), code


def _vectors(context, builder, signature, values, args, places):
    """In a loop over a part: vectors side by side, each with one of the places."""
    begin = context.cast(builder, args[1], signature.args[1], types.int64)
    step = len(places) * LANES
    with cgutils.for_range(builder, ir.Constant(_I64, PART // step)) as loop:
        at = builder.add(begin, builder.mul(loop.index, ir.Constant(_I64, step)))
        for number, place in enumerate(places):
            offset = ir.Constant(_I64, number * LANES)
            yield place, _loaded(context, builder, values, args[0], builder.add(at, offset))


def _loaded(context, builder, values, array, at):
    """LANES elements of an array; bits of bfloat16 as float32."""
    kind = context.get_data_type(values.dtype)
    data = arrayobj.make_array(values)(context, builder, array).data
    found = builder.load(builder.bitcast(builder.gep(data, [at]), ir.VectorType(kind, LANES).as_pointer()))
    found.align = kind.get_abi_size(context.target_data)
    if values.dtype != types.uint16:
        return found
    integers = ir.VectorType(_I32, LANES)
    wide = builder.shl(builder.zext(found, integers), ir.Constant(integers, [16] * LANES))
    return builder.bitcast(wide, _VECTOR)
