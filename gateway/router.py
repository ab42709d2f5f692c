"""Which verifier gets a session: pure choices by policy, from what a gateway knows of each one's load."""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

POLICIES = ("round_robin", "least_loaded", "two_choices", "dart")

KV_SECONDS = 1.0  # lambda: what a half full KV cache weighs
PROMPT_SHARE = 0.1  # work of reading a token of a prompt, in committed tokens
ANY_SPEED = 100.0  # tokens per second of every replica while no speed is known
SHARING = 32.0  # sessions of a replica from which on they rather share its speed than add to it
LEAST_POWER = 0.25
NEAR = 0.05  # predictions within this of the least are equal

T = TypeVar("T")


@dataclass(frozen=True)
class Load:
    """A verifier's load as its gateway knows it.

    reported: sessions in its last report. own: sessions that this gateway has open there. sent: those of them that it
    opened since the report. prompt_tokens: of prompts that are still to be read there, those sent since included.
    kv_share: part of the KV cache in use, in [0, 1]. tokens_per_second: committed, over all sessions; 0 is unknown.
    batch: mean number of sessions that shared it; 0 is unknown.
    """

    reported: int = 0
    own: int = 0
    sent: int = 0
    prompt_tokens: int = 0
    kv_share: float = 0.0
    tokens_per_second: float = 0.0
    batch: float = 0.0

    @property
    def sessions(self) -> int:
        """Sessions there by now."""
        return max(self.reported + self.sent, self.own)


@dataclass(frozen=True)
class Candidate(Generic[T]):
    """A verifier to choose. known_tokens: of the prompt's beginning, which it may hold from another session."""

    target: T
    load: Load
    known_tokens: int = 0


@dataclass(frozen=True)
class Wanted:
    """What a new session asks for. answer_tokens: expected. typical_tokens: expected of a session that is open."""

    prompt_tokens: int = 0
    answer_tokens: float = 1.0
    typical_tokens: float = 1.0


def choose(policy: str, candidates: Sequence[Candidate[T]], wanted: Wanted, rng: random.Random, turn: int) -> T:
    """One of the candidates, which come in an order that lasts. ``turn`` counts choices, for round_robin.

    Raises ValueError without candidates or for an unknown policy.
    """
    if not candidates:
        raise ValueError("no candidates")
    match policy:
        case "round_robin":
            return candidates[turn % len(candidates)].target
        case "least_loaded":
            return _least(candidates, [float(candidate.load.sessions) for candidate in candidates], rng, near=0.0)
        case "two_choices":
            two = rng.sample(candidates, min(2, len(candidates)))
            return _least(two, [float(candidate.load.sessions) for candidate in two], rng, near=0.0)
        case "dart":
            return _least(candidates, predicted_seconds(candidates, wanted), rng, near=NEAR)
    raise ValueError(f"no policy {policy!r}")


def predicted_seconds(candidates: Sequence[Candidate[T]], wanted: Wanted) -> list[float]:
    """For each candidate, the seconds until it has done what it has and what is wanted, plus lambda kv / (1 - kv).

    A prompt's beginning that a candidate holds already is not work, which is all that affinity is worth: it is a part
    of the prompt's own reading, and so yields as soon as the difference in load is larger.
    """
    return [
        _tokens(candidate, wanted) / speed
        + KV_SECONDS * candidate.load.kv_share / max(1 - candidate.load.kv_share, 1e-3)
        for candidate, speed in zip(candidates, weights([candidate.load for candidate in candidates]), strict=True)
    ]


def _tokens(candidate: Candidate[T], wanted: Wanted) -> float:
    """Queued and in-flight work, in committed tokens, the wanted session included."""
    load = candidate.load
    unread = load.prompt_tokens + max(0, wanted.prompt_tokens - candidate.known_tokens)
    return load.sessions * wanted.typical_tokens + wanted.answer_tokens + PROMPT_SHARE * unread


def weights(loads: Sequence[Load]) -> list[float]:
    """Committed tokens per second by which work is divided.

    Sessions that hardly slow each other, as a few do, give tokens in proportion to speed when their numbers are equal;
    many that share what there is do so when their numbers are in proportion. So a difference in speed counts to a power
    that grows with the mean number of sessions m, m / (m + SHARING); at least LEAST_POWER, so that the faster of two
    idle ones wins.
    """
    by_speed = speeds(loads)
    middle = statistics.median(by_speed)
    mean = sum(load.sessions for load in loads) / len(loads)
    power = max(mean / (mean + SHARING), LEAST_POWER)
    return [middle * (speed / middle) ** power for speed in by_speed]


def speeds(loads: Sequence[Load]) -> list[float]:
    """Committed tokens per second of each, made comparable; the median's where it is unknown.

    A pass serves many sessions for little more than one, so what a replica commits says as much about how many sessions
    it had as about itself: taken as it is, whoever gets less looks slower and gets less still. With more sessions a
    replica's tokens per second rise and its tokens per second and session fall. At an equal number of sessions the
    ratio of two replicas therefore lies between their ratios by the one and by the other measure. Where these disagree
    about who is faster, nothing is known; where they agree, the smaller difference is certain and counts.
    """
    known = [load for load in loads if load.tokens_per_second > 0 and load.batch > 0]
    if not known:
        return [ANY_SPEED] * len(loads)
    median = statistics.median(load.tokens_per_second for load in known)
    median_of_one = statistics.median(load.tokens_per_second / load.batch for load in known)
    return [median * _relative_speed(load, median, median_of_one) for load in loads]


def _relative_speed(load: Load, median: float, median_of_one: float) -> float:
    if load.tokens_per_second <= 0 or load.batch <= 0:
        return 1.0
    whole = load.tokens_per_second / median
    of_one = load.tokens_per_second / load.batch / median_of_one
    return max(1.0, min(whole, of_one)) if whole > 1.0 else min(1.0, max(whole, of_one))


def _least(candidates: Sequence[Candidate[T]], costs: Sequence[float], rng: random.Random, *, near: float) -> T:
    """At random among near-equals, so that several gateways with one view do not all choose the same."""
    limit = min(costs) * (1.0 + near)
    return rng.choice([c.target for c, cost in zip(candidates, costs, strict=True) if cost <= limit])
