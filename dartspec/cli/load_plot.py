"""Distributions of a load run as a picture. Needs matplotlib, an extra."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from dartspec.cli.load_sample import Sample


def plot(samples: Sequence[Sample], path: Path) -> None:
    """Write cumulative shares of first-token and inter-token times, a line for each task and mode."""
    draw(samples).savefig(path, dpi=150)


def draw(samples: Sequence[Sample]) -> Figure:
    """The picture."""
    figure = Figure(figsize=(11, 4.5), layout="constrained")
    first, between = figure.subplots(1, 2)
    for task, mode in sorted({(sample.task, sample.mode) for sample in samples}):
        done = [one for one in samples if (one.task, one.mode) == (task, mode) and one.finished and one.chunks]
        if not done:
            continue
        label = f"{task}, {mode}"
        first.plot(*_cumulative(np.array([one.ttft for one in done])), label=label, drawstyle="steps-post")
        between.plot(*_cumulative(np.concatenate([one.gaps() for one in done])), label=label, drawstyle="steps-post")
    for axis, what in ((first, "time to the first token"), (between, "time between tokens")):
        axis.set(xlabel=f"{what}, ms", ylabel="share", ylim=(0, 1), xscale="symlog")
        axis.grid(alpha=0.3)
        if axis.lines:
            axis.legend()
    return figure


def _cumulative(seconds: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Milliseconds in rising order, and the share up to each."""
    return 1e3 * np.sort(seconds), np.arange(1, len(seconds) + 1) / max(len(seconds), 1)
