"""Classes of concurrency."""

from __future__ import annotations

import pytest

from dartspec.services.verifier.concurrency import concurrency_class


@pytest.mark.parametrize(
    ("number", "sessions"),
    [(0, [0]), (1, [1]), (2, [2]), (3, [3, 5]), (4, [6, 8, 11]), (5, [12, 16, 23]), (6, [24, 32, 47]), (7, [48, 64])],
)
def test_powers_of_two_lie_inside_of_their_classes(number: int, sessions: list[int]) -> None:
    assert [concurrency_class(count) for count in sessions] == [number] * len(sessions)
