"""What a target pass costs, as measured on this machine at start."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

Float64 = NDArray[np.float64]

# Rows of a pass that are measured; what lies between is interpolated. Products take these numbers as they are, others
# beyond 32 are rounded up (`linear.TARGET_STEPS`).
ROWS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
# Contexts beyond the first, and the rows that are measured there: attention alone differs, which is smooth.
CONTEXTS = (1024, 4096, 16384)
FEWER_ROWS = (1, 8, 32, 128)
# Times that a pass is measured, by what it takes at most: what disturbs it is a smaller share of a longer one.
# (SmolLM2 on two avx512_bf16 cores, six tables in turns: one row took 16 to 23 ms as the least of three, 16 to 19 as
# that of seven, and start 1.2 s longer.)
REPEATS = ((40.0, 7), (100.0, 3), (np.inf, 2))


@dataclass(frozen=True)
class CostTable:
    """Milliseconds of a pass by its number of rows and the positions that each attends to besides.

    Never falling with either, so that noise cannot make more work look cheaper. contexts [C], rows [R],
    milliseconds [C, R].
    """

    contexts: Float64
    rows: Float64
    milliseconds: Float64

    @staticmethod
    def of(rows: Sequence[int], milliseconds: Sequence[float]) -> CostTable:
        """Table of one context from measurements at rising numbers of rows, the first of them 1."""
        line = np.maximum.accumulate(np.array(milliseconds, dtype=np.float64))
        return CostTable(np.zeros(1), np.array(rows, dtype=np.float64), line[None])

    def with_context(self, context: int, rows: Sequence[int], milliseconds: Sequence[float]) -> CostTable:
        """The table with measurements at a longer context, at fewer rows: what is added there is interpolated."""
        before = self.milliseconds[-1]
        added = np.asarray(milliseconds) - np.interp(rows, self.rows, before)
        # Beyond the rows that were measured attention grows in proportion to them.
        grown = np.interp(self.rows, rows, added) * np.maximum(self.rows / rows[-1], 1.0)
        line = np.maximum.accumulate(before + np.maximum(grown, 0.0))
        return CostTable(np.append(self.contexts, float(context)), self.rows, np.vstack((self.milliseconds, line)))

    def pass_ms(self, rows: Float64 | int, context: float = 0.0) -> Float64:
        """Cost of passes of ``rows`` rows; beyond the table it grows in proportion to its last entries."""
        line = self._line(context)
        inside = np.interp(rows, self.rows, line)
        return np.where(rows > self.rows[-1], line[-1] * rows / self.rows[-1], inside)

    def _line(self, context: float) -> Float64:
        known = self.contexts
        if len(known) == 1 or context <= known[0]:
            return self.milliseconds[0]
        upper = min(int(np.searchsorted(known, context)), len(known) - 1)
        low, high = self.milliseconds[upper - 1], self.milliseconds[upper]
        share = (context - known[upper - 1]) / (known[upper] - known[upper - 1])  # beyond 1: as from the last two
        return low + share * (high - low)


def least_ms(sizes: Sequence[int], run_rows: Callable[[int], None]) -> list[float]:
    """Milliseconds of ``run_rows(n)``, a pass of n rows, for each size. The least of some runs: noise only adds."""
    best = [np.inf] * len(sizes)
    for repeat in range(REPEATS[0][1]):
        for index, rows in enumerate(sizes):
            if repeat and repeat >= next(repeats for most, repeats in REPEATS if best[index] <= most):
                continue
            begin = time.perf_counter()
            run_rows(rows)
            best[index] = min(best[index], 1e3 * (time.perf_counter() - begin))
    return best


def measure(run: Callable[[int, int], None], context: int, longer: Sequence[int], max_rows: int) -> CostTable:
    """Time ``run(context, n)``, which makes a pass of n rows behind a context, there and behind longer contexts."""
    sizes = [rows for rows in ROWS if rows < max_rows] + [max_rows]
    first = CostTable.of(sizes, least_ms(sizes, lambda rows: run(context, rows)))
    table = CostTable(np.array([float(context)]), first.rows, first.milliseconds)
    fewer = [rows for rows in FEWER_ROWS if rows <= max_rows]
    for each in longer:
        table = table.with_context(each, fewer, least_ms(fewer, partial(run, each)))
    return table
