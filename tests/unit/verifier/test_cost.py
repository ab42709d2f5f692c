"""The cost table: measured, never falling, interpolated."""

from __future__ import annotations

import numpy as np
import pytest

from dartspec.services.verifier import cost
from dartspec.services.verifier.cost import CONTEXTS, CostTable, measure


def test_table_interpolates_and_never_falls() -> None:
    table = CostTable.of((1, 5, 9), (10.0, 8.0, 18.0))
    assert table.pass_ms(5) == 10.0
    assert table.pass_ms(7) == 14.0
    assert table.pass_ms(18) == 36.0


def test_longer_contexts_add_what_was_measured() -> None:
    table = CostTable.of((1, 9, 17), (10.0, 20.0, 30.0)).with_context(1000, (1, 9), (12.0, 26.0))
    assert table.pass_ms(1, 0.0) == 10.0
    assert table.pass_ms(1, 1000.0) == 12.0
    assert table.pass_ms(5, 500.0) == pytest.approx(15.0 + (2.0 + 6.0) / 2 / 2)
    # At 17 rows nothing was measured: attention grows with its rows, so what it adds to 9 rows grows by 17/9.
    assert table.pass_ms(17, 1000.0) == pytest.approx(30.0 + 6.0 * 17 / 9)
    assert table.pass_ms(1, 3000.0) == pytest.approx(16.0)  # two more for each thousand
    assert (np.diff(table.milliseconds, axis=0) >= 0).all()


def test_a_longer_context_that_was_measured_as_cheaper_counts_as_equal() -> None:
    table = CostTable.of((1, 9), (10.0, 20.0)).with_context(1000, (1, 9), (9.0, 25.0))
    assert table.pass_ms(1, 1000.0) == 10.0
    assert table.pass_ms(9, 1000.0) == 25.0


def test_measure_times_every_size_and_the_contexts_that_fit() -> None:
    seen: set[tuple[int, int]] = set()
    table = measure(lambda context, rows: seen.add((context, rows)), 128, CONTEXTS[:1], 60)
    assert {rows for context, rows in seen if context == 128} == {1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 60}
    assert {context for context, _ in seen} == {128, CONTEXTS[0]}
    assert table.contexts.tolist() == [128, CONTEXTS[0]]
    assert (np.diff(table.milliseconds, axis=1) >= 0).all()


def test_short_passes_are_measured_seven_times_longer_ones_three_times_and_long_ones_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, runs = 0.0, []
    milliseconds = {
        1: [20.0, 10.0, 15.0, 14.0, 13.0, 12.0, 9.0, 1.0],
        8: [250.0, 90.0, 80.0, 1.0],
        256: [130.0, 120.0, 1.0],
    }

    def run(rows: int) -> None:
        nonlocal clock
        clock += milliseconds[rows][runs.count(rows)] / 1e3
        runs.append(rows)

    monkeypatch.setattr(cost.time, "perf_counter", lambda: clock)
    assert cost.least_ms((1, 8, 256), run) == pytest.approx([9.0, 80.0, 120.0])
    assert [runs.count(rows) for rows in (1, 8, 256)] == [7, 3, 2]
    assert runs[:6] == [1, 8, 256, 1, 8, 256]  # what disturbs the machine for a while does not hit one size alone
