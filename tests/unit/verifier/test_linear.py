"""Numbers of rows that products are compiled for."""

from __future__ import annotations

import pytest

from dartspec.services.verifier.linear import HEAD_STEPS, TARGET_STEPS, kernel_rows


@pytest.mark.parametrize(
    ("rows", "taken"),
    [(0, 0), (1, 1), (17, 17), (32, 32), (33, 34), (64, 64), (65, 72), (128, 128), (129, 144), (256, 256), (257, 288)],
)
def test_rows_of_the_target(rows: int, taken: int) -> None:
    assert kernel_rows(rows, TARGET_STEPS) == taken


@pytest.mark.parametrize(("rows", "taken"), [(1, 1), (8, 8), (9, 16), (64, 64), (65, 96), (1000, 1024)])
def test_rows_of_the_head(rows: int, taken: int) -> None:
    assert kernel_rows(rows, HEAD_STEPS) == taken


def test_the_kernels_of_all_passes_are_few_enough_to_be_kept() -> None:
    """Five weights of a target, and passes of up to 640 rows: a chunk of a prompt and 128 others."""
    assert 5 * len({kernel_rows(rows, TARGET_STEPS) for rows in range(1, 641)}) <= 400
