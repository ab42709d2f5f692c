"""Compiled loops (numba) over tensors' memory, shared among torch's own threads.

A loop takes pieces of work by number until none is left, so any number of threads may run it, and pieces of unequal
length even out. The threads are those of the OpenMP library that torch brings: its idle workers keep spinning for a
while after an operation, so threads of our own would fight them for the processors. Where that library is not found
(it is on Linux), a loop runs in the calling thread.

Imported only where numba is.
"""
# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any
from zlib import crc32

import numba
import numpy as np
import torch
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

# The numbers of a block: how many pieces were taken, how many there are, and from `_FIRST` on the loop's own.
_PIECES, _FIRST = 1, 2
_MAPS = Path("/proc/self/maps")
# Operations below which a second thread does not pay: it takes a few microseconds to start on a piece.
_GRAIN = 8192
# Operations, a fraction of a millisecond, from which on other Python threads may go on meanwhile. For less that is not
# worth it: to take the interpreter back can cost more than such a loop does.
_LONG = 1 << 22


class Loop:
    """A function of a block of int64 numbers, compiled; see `take`."""

    def __init__(self, function: Callable[[Any], None]) -> None:
        signature = types.void(types.CPointer(types.int64))
        options: dict[str, Any] = {"error_model": "numpy", "fastmath": FAST}
        try:
            compiled = numba.cfunc(signature, cache=True, **options)(function)
        except RuntimeError:  # nowhere to keep compiled code
            compiled = numba.cfunc(signature, **options)(function)
        self._compiled = compiled  # keeps the code alive
        address: Any = compiled.address
        self._address = address
        self._here = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(address), ctypes.CFUNCTYPE(None, ctypes.c_void_p)(address)

    def __call__(self, pieces: int, operations: int, *numbers: int) -> None:
        """Do all pieces, in several threads if there are enough operations in them for that."""
        block = (ctypes.c_int64 * (_FIRST + len(numbers)))(0, pieces, *numbers)
        threads = min(pieces, torch.get_num_threads(), 1 + operations // _GRAIN)
        long = operations >= _LONG
        shared = _shared() if threads > 1 else None
        if shared is None:
            self._here[long](block)
        else:
            shared[long](self._address, block, threads, 0)


@cache
def _shared() -> tuple[Callable[..., None], Callable[..., None]] | None:
    """``GOMP_parallel(function, data, threads, flags)`` of the OpenMP library that torch has loaded: keeping the
    interpreter, and letting it go."""
    torch.ones(1 << 17).add_(1)  # it is there from the first use on, if not before
    path = _torchs(_loaded("libgomp"), Path(torch.__file__).parent)
    if path is None:
        return None
    found: tuple[Any, Any] = (ctypes.PyDLL(path).GOMP_parallel, ctypes.CDLL(path).GOMP_parallel)
    for each in found:
        each.argtypes, each.restype = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint), None
    return found


def _loaded(name: str) -> list[str]:
    """Paths of the libraries of this process whose file names hold ``name``; none where that is not known."""
    lines = _MAPS.read_text().splitlines() if _MAPS.exists() else []
    return sorted({line.split(maxsplit=5)[-1] for line in lines if name in line.rpartition("/")[2]})


def _torchs(paths: list[str], torch_directory: Path) -> str | None:
    """Of several the one that came with torch, whose threads they are; other packages bring their own."""
    places = (torch_directory, torch_directory.with_name("torch.libs"))
    own = [path for path in paths if any(Path(path).is_relative_to(place) for place in places)]
    chosen = own or paths
    return chosen[0] if len(chosen) == 1 else None


# What loops are made of besides their own files; numba looks at those alone.
_SOURCES = (
    "loops.py",
    "static_inputs.py",
    "vector_code.py",
    "draw_kernel.py",
    "row_vectors.py",
    "shortlist_loop.py",
    "summary_loop.py",
    "edits.py",
)
SOURCES = crc32(b"".join(Path(__file__).with_name(name).read_bytes() for name in _SOURCES))
# Sums may be reordered and products fused, the same way at every call. Infinities and NaN are kept.
FAST = {"reassoc", "contract", "nsz"}


def inlined(function: Callable[..., Any]) -> Any:
    """A function for use in loops."""
    return numba.njit(inline="always", error_model="numpy", fastmath=FAST)(function)


@inlined
def numbers(block, count, _sources):
    """A loop's own numbers. With `SOURCES`, so that they are part of what compiled code is kept under."""
    return numba.carray(block, _FIRST + count, np.int64)[_FIRST:]


@inlined
def take(block):
    """The next piece; -1 when there is none."""
    piece = _add_one(block)
    return piece if piece < numba.carray(block, _FIRST, np.int64)[_PIECES] else -1


@intrinsic
def _add_one(_, block):
    def code(_context, builder, _signature, args):
        return builder.atomic_rmw("add", args[0], ir.Constant(ir.IntType(64), 1), "monotonic")

    return types.int64(block), code


@intrinsic
def pointer(_, address):
    """The memory at an address."""
    return types.voidptr(address), lambda context, builder, _s, args: builder.inttoptr(
        args[0], context.get_value_type(types.voidptr)
    )


@intrinsic
def _of_bits(_, _bits):
    """The float32 that has the bits of a uint32."""
    return types.float32(types.uint32), lambda _c, builder, _s, args: builder.bitcast(args[0], ir.FloatType())


@intrinsic
def larger(_, _left, _right):
    """The larger of two float32, of which none is a NaN: so that a maximum of many becomes vector instructions."""

    def code(_context, builder, _signature, args):
        promises = ("nnan", "nsz")
        return builder.select(builder.fcmp_ordered(">", *args, flags=promises), *args, flags=promises)

    return types.float32(types.float32, types.float32), code


@intrinsic
def lowest_bit(_, _bits):
    """The number of the lowest bit that is set in an int64, of which one is."""

    def code(_context, builder, _signature, args):
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(types.int64), code


@intrinsic
def widened(_, element):
    """A stored element, the bits of a bfloat16 as uint16, as float32; floats as they are."""

    def code(_context, builder, _signature, args):
        if isinstance(element, types.Float):
            return args[0]
        bits = builder.shl(builder.zext(args[0], ir.IntType(32)), ir.Constant(ir.IntType(32), 16))
        return builder.bitcast(bits, ir.FloatType())

    return (element if isinstance(element, types.Float) else types.float32)(element), code


@intrinsic
def stored(_, _value, kind):
    """A float32 as an element of ``kind``, np.float32 or np.uint16; to bfloat16 it is rounded, to even."""

    def code(_context, builder, _signature, args):
        if kind.dtype == types.float32:
            return args[0]
        bits = builder.bitcast(args[0], ir.IntType(32))
        sixteen, one, half = (ir.Constant(ir.IntType(32), value) for value in (16, 1, 0x7FFF))
        bits = builder.add(bits, builder.add(half, builder.and_(builder.lshr(bits, sixteen), one)))
        return builder.trunc(builder.lshr(bits, sixteen), ir.IntType(16))

    return kind.dtype(types.float32, kind), code


@inlined
def rounded(value, kind):
    """A float32 as it would come back from where it is stored."""
    return widened(stored(value, kind))


def kind_of(dtype: torch.dtype) -> type[np.float32] | type[np.uint16]:
    """How numba sees the elements of tensors."""
    return np.uint16 if dtype == torch.bfloat16 else np.float32


class EXP:
    """Numbers that exp is made of; powers: minimax for (exp(x) - 1 - x) / x^2 on [-ln 2 / 2, ln 2 / 2], highest first
    (Cephes, expf)."""

    log2_e, ln2_high, ln2_low = 1.44269504, 0.693359375, -2.12194440e-4
    least, most = -87.3, 88.3
    powers = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 0.5)


_LOG2_E, _LN2_HIGH, _LN2_LOW = np.float32(EXP.log2_e), np.float32(EXP.ln2_high), np.float32(EXP.ln2_low)
_LEAST, _MOST, _ROUND, _UNIT = np.float32(EXP.least), np.float32(EXP.most), np.float32(0.5), np.float32(1.0)
_BIAS, _MANTISSA = np.int32(127), np.int32(23)
_POWERS = tuple(np.float32(power) for power in EXP.powers)


# In this order: with the two parts of ln 2 put together the result would have fewer digits.
@numba.njit(error_model="numpy", fastmath={"contract", "nsz"}, forceinline=True)
def exp(x):
    """exp of a float32 to 3 units in the last place, without a call, so that loops become vector instructions."""
    x = min(max(x, _LEAST), _MOST)
    whole = np.floor(x * _LOG2_E + _ROUND)
    x = x - whole * _LN2_HIGH - whole * _LN2_LOW
    y = _POWERS[0]
    for power in _POWERS[1:]:
        y = y * x + power
    return (y * x * x + x + _UNIT) * _of_bits(np.uint32((np.int32(whole) + _BIAS) << _MANTISSA))
