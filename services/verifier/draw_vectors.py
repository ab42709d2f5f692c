"""Comparisons of many scores with one level, as LLVM vector code: a bit for each, so that few hits of many cost little.

numba's loops would make a number of every comparison and add those up.
"""
# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.extending import intrinsic
from numba.np import arrayobj

from dartspec.services.verifier.vector_code import broadcast

# Elements of a vector, whatever the processor's registers hold.
LANES = 16

_I16, _I32, _I64 = ir.IntType(16), ir.IntType(32), ir.IntType(64)


@intrinsic
def reaching(_, values, first, level):
    """Which of values[first : first + LANES] are at least ``level``: bit i of the int64 is that of values[first + i].

    values: contiguous array of floats, of bits of bfloat16 as uint16, or of uint32. level: of the elements' type, or
    float32 for bits. All elements must be there.
    """

    def code(context, builder, signature, args):
        array = arrayobj.make_array(values)(context, builder, args[0])
        at = context.cast(builder, args[1], signature.args[1], types.int64)
        kind = context.get_data_type(values.dtype)
        place = builder.bitcast(builder.gep(array.data, [at]), ir.VectorType(kind, LANES).as_pointer())
        found = builder.load(place)
        found.align = kind.get_abi_size(context.target_data)
        if values.dtype == types.uint16:
            integers = ir.VectorType(_I32, LANES)
            wide = builder.shl(builder.zext(found, integers), ir.Constant(integers, [16] * LANES))
            found = builder.bitcast(wide, ir.VectorType(ir.FloatType(), LANES))
        least = broadcast(builder, args[2], found.type)
        if values.dtype == types.uint32:
            reached = builder.icmp_unsigned(">=", found, least)
        else:
            reached = builder.fcmp_ordered(">=", found, least)
        return builder.zext(builder.bitcast(reached, _I16), _I64)

    return types.int64(values, first, level), code
