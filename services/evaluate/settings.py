"""Settings of an evaluation; free of torch, so that `--help` is quick."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dartspec.services.common.config import between, setting
from dartspec.services.evaluate.grid import Grid, each_between


@dataclass(frozen=True)
class EvaluateSettings:
    """How the target answers, and what is kept of its drafts."""

    temperature: tuple[float, ...] = setting((0.0,), "Of the target; repeatable.", check=each_between(0, 100))
    seed: tuple[int, ...] = setting(
        (0,), "Of the sampling noise, the same for all prompts; repeatable.", check=each_between(0, 2**64 - 1)
    )
    max_new: int = setting(128, "Longest answer, in tokens.", check=between(3, 2**20))
    rows: int = setting(32, "Answers that are written at a time.", check=between(1, 1024))
    dtype: str = setting(
        "auto",
        "Numbers of target and head; auto is bfloat16 where it is native, else float32.",
        choices=("auto", "float32", "bfloat16"),
    )
    device: str = setting("auto", "cpu, cuda or cuda:N; auto: cuda when there is one.")
    threads: int | None = setting(None, "CPU threads.  [default: all cores]", check=between(1, 1024))


@dataclass(frozen=True)
class Evaluation:
    """All of an evaluation. tasks: chat prompts by task.

    index: a file, or None for no counts; one that is not there yet is counted from ``corpus``. share_noise: each kind
    of draft to look at, those that follow the target's noise and those that do not. settings: complete, without "auto"
    for dtype.
    """

    model: str
    revision: str
    head: str
    index: Path | None
    corpus: Path | None
    tasks: Mapping[str, Sequence[str]]
    share_noise: tuple[bool, ...]
    grid: Grid
    settings: EvaluateSettings
