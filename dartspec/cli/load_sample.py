"""What a load generator measured, and the figures made of it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

PERCENTILES = (50, 90, 95, 99)
CUT_OFF = ("CUT_OFF", "the answer ended without its last message")


@dataclass
class Sample:
    """One request. chunks: (seconds since it was due, tokens). error: a code, "" for none; problem: in words. late:
    seconds between when it was due and when it was sent. mode_used, dart_rounds, accepted: the answer's.

    Neither finished nor with an error is what was open when the run was interrupted.
    """

    task: str
    mode: str
    chunks: list[tuple[float, int]] = field(default_factory=list)
    error: str = ""
    problem: str = ""
    late: float = 0.0
    finished: bool = False
    mode_used: str = ""
    dart_rounds: int = 0
    accepted: int = 0

    def fail(self, code: str, words: str) -> None:
        """It ended with an error."""
        self.error, self.problem, self.finished = code, words, False

    @property
    def tokens(self) -> int:
        """That came."""
        return sum(count for _, count in self.chunks)

    @property
    def ttft(self) -> float:
        """Seconds until the first token; infinite without one."""
        return self.chunks[0][0] if self.chunks else float("inf")

    def gaps(self) -> NDArray[np.float64]:
        """Seconds before each token but those of the first chunk; tokens that came together share the time."""
        counts = np.array([count for _, count in self.chunks[1:]], int)
        spans = np.diff([at for at, _ in self.chunks])
        return np.repeat(spans / np.maximum(counts, 1), counts)


@dataclass(frozen=True)
class Target:
    """What a good answer keeps. Seconds; infinite is not asked for. inter_token: the 95th percentile of its tokens."""

    ttft: float = float("inf")
    inter_token: float = float("inf")

    def met(self, sample: Sample) -> bool:
        """Whether an answer that came to its end kept it."""
        if not sample.finished or sample.ttft > self.ttft:
            return False
        gaps = sample.gaps()
        return not len(gaps) or float(np.percentile(gaps, 95)) <= self.inter_token


def summary(samples: Sequence[Sample], seconds: float, target: Target) -> dict[str, Any]:
    """Figures of some samples of a run that took so long."""
    done = [sample for sample in samples if sample.finished]
    gaps = np.concatenate([sample.gaps() for sample in done]) if done else np.zeros(0)
    rounds = sum(sample.dart_rounds for sample in done)
    good = sum(target.met(sample) for sample in done)
    return {
        "requests": len(samples),
        "finished": len(done),
        "errors": _counts(sample.error for sample in samples if sample.error),
        "tokens": sum(sample.tokens for sample in samples),
        "tokens_per_s": round(sum(sample.tokens for sample in samples) / seconds, 2) if seconds else 0.0,
        "requests_per_s": round(len(done) / seconds, 3) if seconds else 0.0,
        "ttft_ms": _percentiles(np.array([sample.ttft for sample in done if sample.chunks])),
        "inter_token_ms": _percentiles(gaps),
        "good": good,
        "goodput_requests_per_s": round(good / seconds, 3) if seconds else 0.0,
        "accepted_per_round": round(sum(sample.accepted for sample in done) / rounds, 3) if rounds else None,
        "modes_used": _counts(sample.mode_used for sample in done if sample.mode_used),
    }


def problems(samples: Sequence[Sample]) -> list[str]:
    """A line for each code of an error: how many have it, and the words of the first."""
    first: dict[str, str] = {}
    for sample in samples:
        if sample.error:
            first.setdefault(sample.error, sample.problem)
    counts = _counts(sample.error for sample in samples)
    return [f"{code} ({counts[code]}): {words}" for code, words in first.items()]


def report(samples: Sequence[Sample], seconds: float, target: Target) -> dict[str, Any]:
    """Figures of a run: of all samples, and by task and mode."""
    groups = sorted({(sample.task, sample.mode) for sample in samples})
    return {
        "seconds": round(seconds, 3),
        "late_p99_ms": _percentiles(np.array([sample.late for sample in samples]))["p99"],
        "all": summary(samples, seconds, target),
        "groups": [
            {"task": task, "mode": mode}
            | summary([one for one in samples if (one.task, one.mode) == (task, mode)], seconds, target)
            for task, mode in groups
        ],
    }


def _percentiles(seconds: NDArray[np.float64]) -> dict[str, float | None]:
    """In milliseconds; None without values."""
    if not len(seconds):
        return {f"p{p}": None for p in PERCENTILES}
    return {f"p{p}": round(1e3 * float(np.percentile(seconds, p)), 3) for p in PERCENTILES}


def _counts(values: Any) -> dict[str, int]:
    counts: dict[str, int] = {}
    for value in values:
        counts[value] = counts.get(value, 0) + 1
    return counts
