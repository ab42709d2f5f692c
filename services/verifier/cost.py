"""What a target pass costs, as measured on this machine at start."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Float64 = NDArray[np.float64]

# Rows of a pass that are measured; what lies between is interpolated.
ROWS = (1, 2, 3, 5, 9, 13, 17, 25, 33, 49, 65, 97, 129, 193, 257)
REPEATS = 3


@dataclass(frozen=True)
class CostTable:
    """Milliseconds of a pass by its number of rows; never falling, so that noise cannot make more work look cheaper."""

    rows: Float64
    milliseconds: Float64

    @staticmethod
    def of(rows: Sequence[int], milliseconds: Sequence[float]) -> CostTable:
        """Table from measurements at rising numbers of rows, the first of them 1."""
        return CostTable(np.array(rows, dtype=np.float64), np.maximum.accumulate(milliseconds))

    def pass_ms(self, rows: Float64 | int) -> Float64:
        """Cost of passes of ``rows`` rows; beyond the table it grows in proportion to the last entry."""
        inside = np.interp(rows, self.rows, self.milliseconds)
        return np.where(rows > self.rows[-1], self.milliseconds[-1] * rows / self.rows[-1], inside)


def measure(run_rows: Callable[[int], None], max_rows: int) -> CostTable:
    """Time ``run_rows(n)``, which makes a pass of n rows. The least of a few runs counts: noise only adds."""
    sizes = [rows for rows in ROWS if rows < max_rows] + [max_rows]
    best = [np.inf] * len(sizes)
    for _ in range(REPEATS):
        for index, rows in enumerate(sizes):
            begin = time.perf_counter()
            run_rows(rows)
            best[index] = min(best[index], 1e3 * (time.perf_counter() - begin))
    return CostTable.of(sizes, best)
