"""What Prometheus is told of an ngram service."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import accumulate

import grpc
import ngram_index
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from dartspec.services.ngram.reload import Reloader

_CODES = {int(code.value[0]): code.name for code in grpc.StatusCode}
_INDEX_LABELS = ("fingerprint", "file")


class ServiceCollector(Collector):
    """Reads the server's own counters at each scrape. Labels take methods, gRPC codes, lengths, the indexes served."""

    def __init__(self, server: ngram_index.Server, reloader: Reloader) -> None:
        self._server = server
        self._reloader = reloader

    def collect(self) -> Iterator[Metric]:
        """All metrics, named dartspec_ngram_*."""
        yield from self._calls(self._server.metrics())
        yield from self._indexes()
        yield CounterMetricFamily("dartspec_ngram_swaps", "Indexes replaced while serving.", self._reloader.swaps)

    @staticmethod
    def _calls(counted: ngram_index.Metrics) -> Iterator[Metric]:
        calls = CounterMetricFamily("dartspec_ngram_calls", "Calls that ended.", labels=("method", "code"))
        for method, code, count in counted["calls"]:
            calls.add_metric((method, _CODES[code]), count)
        yield calls
        times = HistogramMetricFamily(
            "dartspec_ngram_call_seconds",
            "Time of whole calls; of a stream from its first to its last message.",
            labels=("method",),
        )
        for method, (buckets, seconds) in counted["call_times"]:
            times.add_metric((method,), _cumulated(counted["bounds"], buckets), seconds)
        yield times
        buckets, seconds = counted["search_times"]
        search = HistogramMetricFamily("dartspec_ngram_search_seconds", "Time of the search of one query.")
        search.add_metric((), _cumulated(counted["bounds"], buckets), seconds)
        yield search
        queries = CounterMetricFamily("dartspec_ngram_queries", "Queries answered.", labels=("kind",))
        queries.add_metric(("search",), sum(buckets))
        queries.add_metric(("score",), counted["score_queries"])
        yield queries
        yield CounterMetricFamily(
            "dartspec_ngram_contexts", "Contexts whose continuations were looked up.", counted["contexts"]
        )
        nodes = CounterMetricFamily(
            "dartspec_ngram_tree_nodes",
            "Nodes of the answered trees by the tokens of the longest context that knew them as a continuation.",
            labels=("matched",),
        )
        for matched, count in enumerate(counted["nodes_by_matched"]):
            nodes.add_metric((str(matched),), count)
        yield nodes
        for name, what, (now, most) in [
            ("queue_queries", "Queries that wait or are worked on", counted["queue"]),
            ("streams", "SearchStream calls that are open", counted["streams"]),
        ]:
            yield GaugeMetricFamily(f"dartspec_ngram_{name}", f"{what}.", now)
            yield GaugeMetricFamily(f"dartspec_ngram_{name}_limit", f"{what}, at most.", most)

    def _indexes(self) -> Iterator[Metric]:
        info = GaugeMetricFamily(
            "dartspec_ngram_index_info", "The indexes that are served.", labels=(*_INDEX_LABELS, "order")
        )
        size = GaugeMetricFamily("dartspec_ngram_index_bytes", "Bytes mapped.", labels=_INDEX_LABELS)
        resident = GaugeMetricFamily(
            "dartspec_ngram_index_resident_bytes", "Bytes in memory, whichever process read them.", labels=_INDEX_LABELS
        )
        nodes = GaugeMetricFamily(
            "dartspec_ngram_index_nodes", "Distinct n-grams by length.", labels=(*_INDEX_LABELS, "length")
        )
        for index in self._server.indexes:
            labels = (index.fingerprint, os.path.basename(index.path))
            info.add_metric((*labels, str(index.order)), 1)
            size.add_metric(labels, index.file_bytes)
            resident.add_metric(labels, ngram_index.resident_bytes(index))
            for length, count in enumerate(index.nodes, start=1):
                nodes.add_metric((*labels, str(length)), count)
        yield from (info, size, resident, nodes)


def _cumulated(bounds: list[float], buckets: list[int]) -> list[tuple[str, float]]:
    names = [*(f"{bound:g}" for bound in bounds), "+Inf"]
    return list(zip(names, accumulate(buckets), strict=True))
