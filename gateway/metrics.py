"""What Prometheus is told of a gateway. Counters of speculation have the shape of vLLM's.

Labels take modes, reasons, gRPC codes, depths up to a limit and parts of a round: nothing that a client chooses.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from dartspec.gateway import mode_reasons
from dartspec.gateway.stats import PARTS, Stats, Totals
from dartspec.gateway.types import FinishReason, Mode


class GatewayCollector(Collector):
    """Reads the statistics at each scrape."""

    def __init__(self, stats: Stats) -> None:
        self._stats = stats

    def collect(self) -> Iterator[Metric]:
        """All metrics, named dartspec_gateway_*."""
        totals = self._stats.totals()
        yield from _requests(totals)
        yield from _tokens(totals)
        yield from _times(totals)


def _requests(totals: Totals) -> Iterator[Metric]:
    yield GaugeMetricFamily("dartspec_gateway_running_requests", "Requests that have a first token.", totals.running)
    yield GaugeMetricFamily("dartspec_gateway_waiting_requests", "Requests that wait for it.", totals.waiting)
    requests = CounterMetricFamily(
        "dartspec_gateway_requests",
        "Answers that came to their end, by the mode that was used and why they ended.",
        labels=("mode", "reason"),
    )
    for mode in Mode:
        for reason in (FinishReason.STOP, FinishReason.LENGTH):
            requests.add_metric((mode.name.lower(), reason.name.lower()), totals.finished[mode, reason])
    yield requests
    reasons = CounterMetricFamily(
        "dartspec_gateway_mode_reasons", "Answers that came to their end, by why their mode was used.", labels=("why",)
    )
    for why, short in mode_reasons.SHORT.items():
        reasons.add_metric((short,), totals.reasons[why])
    yield reasons
    yield GaugeMetricFamily(
        "dartspec_gateway_policy_plain_classes",
        "Kinds of open requests that the policy keeps from drafting, summed over replicas.",
        totals.control.plain_classes,
    )
    yield GaugeMetricFamily(
        "dartspec_gateway_drifting_replicas",
        "Replicas whose rounds accept fewer draft tokens than their head's card says.",
        totals.control.drifting,
    )
    failures = CounterMetricFamily(
        "dartspec_gateway_failures", "Requests that ended with an error, or whose client went away.", labels=("code",)
    )
    for code, count in sorted(totals.failures.items()):
        failures.add_metric((code,), count)
    yield failures
    yield _counter("failovers", "Times that an answer went on at another verifier.", totals.failovers)


def _tokens(totals: Totals) -> Iterator[Metric]:
    yield _counter("prompt_tokens", "Tokens of the prompts of answers that ended.", totals.prompt_tokens)
    yield _counter("committed_tokens", "Tokens of answers, what follows a stop cut off.", totals.committed_tokens)
    yield _counter("rounds", "Rounds that verified draft tokens.", totals.rounds)
    yield _counter("plain_steps", "Passes that decoded one token.", totals.plain_steps)
    yield _counter("draft_tokens", "Draft tokens that were verified.", totals.draft_tokens)
    yield _counter("accepted_tokens", "Draft tokens that were accepted.", totals.accepted_tokens)
    positions = CounterMetricFamily(
        "dartspec_gateway_accepted_tokens_per_position",
        "Draft tokens that were accepted, by their depth in the tree, from 1.",
        labels=("position",),
    )
    # A round that accepts A tokens accepts one at each depth from 1 to A.
    at_least = list(accumulate(reversed(totals.rounds_by_accepted)))[::-1]
    for depth, count in enumerate(at_least[1:], start=1):
        positions.add_metric((str(depth),), count)
    yield positions
    yield _counter(
        "ngram_fallbacks", "Searches that the verifier's own chain replaced: no ngram answered.", totals.ngram_fallbacks
    )


def _times(totals: Totals) -> Iterator[Metric]:
    parts = CounterMetricFamily(
        "dartspec_gateway_ledger_seconds",
        "Where the time of requests that ended went, summed over requests, from the first token to the last.",
        labels=("part",),
    )
    for part in PARTS:
        parts.add_metric((part,), totals.parts[part])
    yield parts
    for name, what, histogram in (
        ("time_to_first_token_seconds", "From a request's arrival to its first token.", totals.first_tokens),
        ("inter_token_seconds", "Between tokens; those that come together share the time.", totals.inter_token),
        ("request_seconds", "From the arrival to the end of answers that came to it.", totals.durations),
    ):
        family = HistogramMetricFamily(f"dartspec_gateway_{name}", what)
        family.add_metric((), histogram.buckets(), histogram.sum)
        yield family


def _counter(name: str, what: str, value: float) -> Metric:
    return CounterMetricFamily(f"dartspec_gateway_{name}", what, value)
