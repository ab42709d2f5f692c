"""What Prometheus is told of a verifier. Counters of speculation have the shape of vLLM's."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from dartspec.services.verifier.engine import Engine
from dartspec.services.verifier.messages import Load
from dartspec.services.verifier.stats import Figures


class EngineCollector(Collector):
    """Reads the engine's statistics at each scrape. Labels take gRPC codes, depths up to a limit, parts of a step."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def collect(self) -> Iterator[Metric]:
        """All metrics, named dartspec_verifier_*."""
        load, figures = self._engine.load, self._engine.stats.figures()
        yield from self._gauges(load)
        yield from _tokens(load, figures)
        yield from _times(figures)
        failures = CounterMetricFamily(
            "dartspec_verifier_failures", "Sessions that ended with an error.", labels=("code",)
        )
        for code, count in sorted(figures.failures.items()):
            failures.add_metric((code,), count)
        yield failures
        yield _counter("evictions", "Sessions that were dropped because nothing was asked of them.", figures.evictions)

    def _gauges(self, load: Load) -> Iterator[Metric]:
        yield _gauge("sessions", "Sessions that are open.", load.sessions)
        yield _gauge("sessions_limit", "Sessions that can be open.", self._engine.admission.max_sessions)
        yield _gauge("waiting_sessions", "Open sessions whose prompt is not read to its end.", load.waiting_sessions)
        yield _gauge("running_sessions", "Open sessions that have begun to answer.", load.running_sessions)
        yield _gauge("queued", "Sessions that can go on and wait for a pass.", load.queued)
        yield _gauge("prompt_tokens_left", "Tokens of prompts that are still to be read.", load.prompt_tokens_left)
        yield _gauge("kv_used_positions", "Positions of KV cache that open sessions hold.", load.kv_used)
        yield _gauge("kv_capacity_positions", "Positions of KV cache in all.", load.kv_capacity)
        yield _gauge("draining", "1 while open sessions end and no new ones are taken.", load.draining)


def _tokens(load: Load, figures: Figures) -> Iterator[Metric]:
    yield _counter("prompt_tokens", "Tokens of prompts that were read.", figures.prompt_tokens)
    yield _counter("committed_tokens", "Tokens of answers, after what follows a stop was cut.", load.committed_tokens)
    yield _counter("rounds", "Passes of a session that verified draft tokens.", load.rounds)
    yield _counter("draft_tokens", "Draft tokens that were verified.", sum(load.verified_per_depth))
    yield _counter("accepted_tokens", "Draft tokens that were accepted.", load.accepted_tokens)
    for name, what, counts in (
        ("draft_tokens_per_position", "verified", load.verified_per_depth),
        ("accepted_tokens_per_position", "accepted", load.accepted_per_depth),
    ):
        family = CounterMetricFamily(
            f"dartspec_verifier_{name}",
            f"Draft tokens that were {what}, by their depth in the tree, from 1.",
            labels=("position",),
        )
        for depth, count in enumerate(counts, start=1):
            family.add_metric((str(depth),), count)
        yield family


def _times(figures: Figures) -> Iterator[Metric]:
    steps = HistogramMetricFamily(
        "dartspec_verifier_step_seconds",
        "Time of a step: the target's pass up to its logits, the draft, and the step loop's own time.",
        labels=("part",),
    )
    for part, times in (("pass", figures.passes), ("draft", figures.drafts), ("own", figures.own)):
        steps.add_metric((part,), times.buckets(), times.sum)
    yield steps
    first = HistogramMetricFamily(
        "dartspec_verifier_time_to_first_token_seconds", "From the opening of a session to its first token here."
    )
    first.add_metric((), figures.first_tokens.buckets(), figures.first_tokens.sum)
    yield first


def _gauge(name: str, what: str, value: float) -> Metric:
    return GaugeMetricFamily(f"dartspec_verifier_{name}", what, value)


def _counter(name: str, what: str, value: float) -> Metric:
    return CounterMetricFamily(f"dartspec_verifier_{name}", what, value)
