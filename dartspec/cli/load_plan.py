"""What a load generator sends, and when: arrivals, prompts and lengths, all from one seed. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dartspec.cli.prompts import Prompt
from dartspec.cli.request_settings import MOST_TOKENS
from dartspec.services.common.errors import InvalidArgument, NotFound

SHOWN = 120  # characters of a wrong line
MOST_SECONDS = 1e15  # so that times since 1970 in microseconds are not refused


@dataclass(frozen=True)
class Job:
    """One request. at: seconds after the start. task: the prompt file's name."""

    at: float
    task: str
    prompt: Prompt
    max_tokens: int
    mode: str


@dataclass(frozen=True)
class Arrival:
    """When a request comes, and how long its answer may be when the trace says so."""

    at: float
    max_tokens: int | None = None


class Lengths:
    """Answer lengths in tokens: "64", "uniform:16:1024" or "lognormal:16:1024" (its middle 95% lies between)."""

    def __init__(self, text: str) -> None:
        """Raises InvalidArgument for anything else."""
        kind, *bounds = text.split(":") if ":" in text else ("uniform", text, text)
        try:
            self.low, self.high = (int(bound) for bound in bounds)
        except ValueError:
            self.low = self.high = 0
        if kind not in ("uniform", "lognormal") or not 1 <= self.low <= self.high <= MOST_TOKENS:
            forms = f"N, uniform:LOW:HIGH or lognormal:LOW:HIGH, from 1 to {MOST_TOKENS}"
            raise InvalidArgument("--tokens", f"must be {forms}, got {text!r}")
        self.kind = kind

    def draw(self, count: int, rng: np.random.Generator) -> list[int]:
        """So many lengths."""
        if self.kind == "lognormal":
            low, high = np.log((self.low, self.high))
            drawn = np.exp(rng.normal((low + high) / 2, (high - low) / (2 * 1.96), count))
            return [int(value) for value in np.clip(np.rint(drawn), self.low, self.high)]
        return [int(value) for value in rng.integers(self.low, self.high + 1, count)]


def poisson(rate: float, count: int, rng: np.random.Generator) -> list[Arrival]:
    """Arrivals of a Poisson process of ``rate`` a second."""
    return [Arrival(float(at)) for at in np.cumsum(rng.exponential(1.0 / rate, count))]


def read_trace(path: Path) -> list[Arrival]:
    """JSON Lines with "at" (seconds) and perhaps "max_tokens". Raises NotFound, or InvalidArgument with the line."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise NotFound(f"--trace {path}: cannot be read: {error}") from error
    numbered = [(number, line) for number, line in enumerate(lines, start=1) if line.strip()]
    arrivals = [_arrival(path, number, line) for number, line in numbered]
    if not arrivals:
        raise InvalidArgument("--trace", f"{path} holds no arrival")
    first = min(arrival.at for arrival in arrivals)
    return sorted((Arrival(a.at - first, a.max_tokens) for a in arrivals), key=lambda arrival: arrival.at)


def _arrival(path: Path, number: int, line: str) -> Arrival:
    try:
        value: Any = json.loads(line)
    except ValueError:
        value = None
    fields = value if isinstance(value, dict) else {}
    at: Any = fields.get("at")
    max_tokens: Any = fields.get("max_tokens")
    if not _between(at, 0, MOST_SECONDS):
        problem = f'must be {{"at": SECONDS}}, not negative, got {line[:SHOWN]!r}'
    elif max_tokens is not None and not (_between(max_tokens, 1, MOST_TOKENS) and max_tokens % 1 == 0):
        problem = f'"max_tokens" must be a whole number from 1 to {MOST_TOKENS}, got {line[:SHOWN]!r}'
    else:
        return Arrival(float(at), None if max_tokens is None else int(max_tokens))
    raise InvalidArgument("--trace", f"{path}, line {number}: {problem}")


def _between(value: Any, low: float, high: float) -> bool:
    """Of JSON's values, which may be NaN or too large for a float; True and False count as numbers in Python only."""
    return isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high


def make_jobs(
    arrivals: Sequence[Arrival],
    tasks: Sequence[tuple[str, Sequence[Prompt]]],
    lengths: Lengths,
    modes: Sequence[str],
    rng: np.random.Generator,
) -> list[Job]:
    """A job for each arrival: tasks in turns, prompts of a task in order, modes in turns for each round of tasks."""
    drawn = lengths.draw(len(arrivals), rng)
    jobs = []
    for number, (arrival, length) in enumerate(zip(arrivals, drawn, strict=True)):
        turn, place = divmod(number, len(tasks))
        task, prompts = tasks[place]
        prompt = prompts[turn // len(modes) % len(prompts)]
        jobs.append(Job(arrival.at, task, prompt, arrival.max_tokens or length, modes[turn % len(modes)]))
    return jobs
