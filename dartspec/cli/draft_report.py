"""What an evaluation found, as tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

Point = dict[str, Any]

_GRID = ("search", "k", "w", "theta", "rule", "weight", "transition")


def hit_table(points: Sequence[Point]) -> str:
    """hit@1 and hit@10 by offset, for each temperature and kind of draft."""
    depth = len(points[0]["hit1"])
    rows = [["T", "noise", "", *(f"+{offset + 1}" for offset in range(depth))]]
    for kind in dict.fromkeys((point["temperature"], point["share_noise"]) for point in points):
        point = next(point for point in points if (point["temperature"], point["share_noise"]) == kind)
        for name in ("hit1", "hit10"):
            rates = [f"{rate:.3f}" for rate in point[name]]
            rows.append([f"{kind[0]:g}", noise(kind), name.replace("hit", "hit@"), *rates])
    return _aligned(rows)


def point_table(points: Sequence[Point]) -> str:
    """M of every point of the grid, by task."""
    tasks = list(points[0]["mean_committed"])
    rows = [["T", "noise", *_GRID, *tasks, "mean M"]]
    for point in points:
        means = [_number(point["mean_committed"][task]) for task in tasks]
        where = [_cell(point[name]) for name in _GRID]
        kind = (point["temperature"], point["share_noise"])
        rows.append([f"{kind[0]:g}", noise(kind), *where, *means, _number(point["mean"])])
    return _aligned(rows)


def noise(kind: tuple[float, bool]) -> str:
    """Whether a draft follows the target's noise, in a word; nothing at temperature 0, which has none."""
    return "" if kind[0] == 0 else "shared" if kind[1] else "own"


def label(point: Point) -> str:
    """A search in a few words, without its node budget."""
    parts = [point["search"], f"k={point['k']}"]
    parts += [f"{name}={point[name]:g}" for name in ("w", "weight", "transition") if point[name] is not None]
    parts += [point["rule"]] if point["rule"] not in (None, "auto") else []
    return " ".join(parts)


def _cell(value: Any) -> str:
    return "-" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _aligned(rows: Iterable[Sequence[str]]) -> str:
    rows = list(rows)
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )
