"""Philox for arrays of counters, positions and seeds that broadcast together, step by step as it is published."""

from __future__ import annotations

from typing import Any

import numpy as np

_M0, _M1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_W0, _W1 = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)
_LOW, _32 = np.uint64(0xFFFFFFFF), np.uint64(32)


def naive_philox(counters: Any, positions: Any, seeds: Any) -> np.ndarray:
    """Philox4x32-10 of counters (c, position, 0, 0) under 64-bit seeds, all uint64 of a common shape s -> [*s, 4]."""
    k0, k1 = seeds & _LOW, seeds >> _32
    c0, c1, c2, c3 = counters, positions & _LOW, np.uint64(0), np.uint64(0)
    for _ in range(10):
        p0, p1 = c0 * _M0, c2 * _M1
        c0, c1, c2, c3 = (p1 >> _32) ^ c1 ^ k0, p1 & _LOW, (p0 >> _32) ^ c3 ^ k1, p0 & _LOW
        k0, k1 = (k0 + _W0) & _LOW, (k1 + _W1) & _LOW
    return np.stack(np.broadcast_arrays(c0, c1, c2, c3), axis=-1)
