"""What a load generator sends, and when: arrivals, prompts and lengths, all from one seed. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dartspec.cli.prompts import Prompt
from dartspec.services.common.errors import InvalidArgument, NotFound


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
        kind, *bounds = text.split(":") if ":" in text else ("fixed", text, text)
        try:
            self.low, self.high = (int(bound) for bound in bounds)
        except ValueError:
            self.low = self.high = 0
        if kind not in ("fixed", "uniform", "lognormal") or not 1 <= self.low <= self.high:
            raise InvalidArgument("--tokens", f"must be N, uniform:LOW:HIGH or lognormal:LOW:HIGH, got {text!r}")
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
    arrivals = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
            arrival = Arrival(float(value["at"]), int(value["max_tokens"]) if "max_tokens" in value else None)
        except (ValueError, TypeError, KeyError) as error:
            problem = f'{path}, line {number}: must be {{"at": SECONDS}}, got {line!r}'
            raise InvalidArgument("--trace", problem) from error
        if arrival.at < 0 or (arrival.max_tokens is not None and arrival.max_tokens < 1):
            raise InvalidArgument("--trace", f"{path}, line {number}: must not be negative, got {line!r}")
        arrivals.append(arrival)
    if not arrivals:
        raise InvalidArgument("--trace", f"{path} holds no arrival")
    first = min(arrival.at for arrival in arrivals)
    return sorted((Arrival(a.at - first, a.max_tokens) for a in arrivals), key=lambda arrival: arrival.at)


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
