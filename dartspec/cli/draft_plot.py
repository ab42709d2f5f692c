"""What an evaluation found, as curves. Needs matplotlib, an extra."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from dartspec.cli.draft_report import label, noise

# A curve per search and kind of draft; beyond so many, nobody reads a legend.
MOST_LABELS = 16


def save_plot(points: Sequence[dict[str, Any]], path: Path) -> None:
    """Hit rates by offset on the left; mean M by node budget on the right."""
    figure = Figure(figsize=(12, 5), layout="constrained")
    hits, means = figure.subplots(1, 2)
    curves: dict[str, list[tuple[int, float]]] = defaultdict(list)
    seen: set[str] = set()
    for point in points:
        kind = f"T={point['temperature']:g} {noise((point['temperature'], point['share_noise']))}".strip()
        if kind not in seen:
            seen.add(kind)
            offsets = range(1, len(point["hit1"]) + 1)
            (line,) = hits.plot(offsets, point["hit1"], marker="o", label=f"{kind} hit@1")
            hits.plot(offsets, point["hit10"], marker="o", ls="--", color=line.get_color(), label=f"{kind} hit@10")
        if point["mean"] is not None:
            curves[f"{kind} {label(point)}"].append((point["theta"] or 0, point["mean"]))
    for name, curve in curves.items():
        if curve[0][0]:
            means.plot(*zip(*sorted(curve), strict=True), marker="o", label=name)
        else:  # a chain has no node budget
            means.axhline(curve[0][1], ls=":", color="grey", label=name)
    hits.set(xlabel="offset", ylabel="share of positions", ylim=(0, 1), title="the next tokens among the candidates")
    means.set(xlabel="nodes of a tree", ylabel="tokens committed a round, M", title="mean over tasks")
    for axes in (hits, means):
        axes.grid(alpha=0.3)
        if len(axes.get_lines()) <= MOST_LABELS:
            axes.legend(fontsize="small")
    figure.savefig(path, dpi=120)
