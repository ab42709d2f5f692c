"""Rows of the transition benchmark: means over seeds, and differences from the same seed's search without the score."""

from __future__ import annotations

from typing import Any

from bench.transition import BUDGETS, summary


def points(means: dict[tuple[float, float], float]) -> list[dict[str, Any]]:
    return [
        {"weight": weight, "transition": score, "theta": theta, "mean": mean + theta / 1000}
        for (weight, score), mean in means.items()
        for theta in BUDGETS
    ]


def test_differences_are_from_no_score_with_the_same_weight_and_seed() -> None:
    first = points({(0.5, 0.0): 2.0, (0.5, 1.0): 2.25, (0.0, 0.0): 1.5, (0.0, 1.0): 1.5})
    second = points({(0.5, 0.0): 2.0, (0.5, 1.0): 2.75, (0.0, 0.0): 1.5, (0.0, 1.0): 2.0})
    rows = {(row["ngram_weight"], row["transition_weight"]): row for row in summary([first, second])}
    assert list(rows) == [(0.5, 0.0), (0.5, 1.0), (0.0, 0.0), (0.0, 1.0)]
    assert rows[0.5, 0.0]["8"] == {"mean": 2.008, "half": 0.0}
    assert "8_difference" not in rows[0.5, 0.0]
    # Two values 0.5 apart: their standard error is 0.25, and 12.706 is the factor for one degree of freedom.
    assert rows[0.5, 1.0]["59_difference"] == {"mean": 0.5, "half": 3.1765}
    assert rows[0.0, 1.0]["16_difference"] == {"mean": 0.25, "half": 3.1765}
    assert rows[0.0, 1.0]["16"]["mean"] == 1.766
