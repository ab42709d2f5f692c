"""What the service counts, in process and as Prometheus sees it."""

from __future__ import annotations

import socket
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import grpc
import ngram_index
import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from dartspec.services.common.errors import FailedPrecondition
from dartspec.services.common.metrics import MetricsEndpoint
from dartspec.services.ngram.metrics import ServiceCollector
from dartspec.services.ngram.reload import FileIdentity, Reloader, Served
from dartspec.v1 import ngram_pb2, ngram_pb2_grpc

from .served import DOCUMENTS, open_channel, request
from .serving import serving
from .support import FINGERPRINT, build


@pytest.fixture
def index(tmp_path: Path) -> ngram_index.Index:
    return build(tmp_path / "served.ngx", DOCUMENTS, 3, 20)


@pytest.fixture
def server(index: ngram_index.Index, tmp_path: Path) -> Iterator[ngram_index.Server]:
    with ngram_index.Server([index], [f"unix:{tmp_path}/s.sock"], max_queue=5000) as server:
        yield server


@pytest.fixture
def stub(server: ngram_index.Server) -> Iterator[ngram_pb2_grpc.NgramServiceStub]:
    with open_channel(server.addresses[0]) as channel:
        yield ngram_pb2_grpc.NgramServiceStub(channel)


def scrape(address: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Value of each sample by name and labels."""
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=20) as answer:
        families = text_string_to_metric_families(answer.read().decode())
        return {(s.name, tuple(sorted(s.labels.items()))): s.value for family in families for s in family.samples}


def test_everything_that_was_done_is_counted(
    server: ngram_index.Server,
    stub: ngram_pb2_grpc.NgramServiceStub,
    index: ngram_index.Index,
    tmp_path: Path,
) -> None:
    served = Served(index.path, FINGERPRINT, FileIdentity.of(index.path))
    reloader = Reloader(server, [served], "mmap")
    matched: Counter[int] = Counter()
    with MetricsEndpoint("127.0.0.1:0") as endpoint:
        endpoint.show(ServiceCollector(server, reloader))
        answers = [stub.Search(request(count)) for count in (1, 1, 40)]
        answers += list(stub.SearchStream(iter([request(3)] * 5)))
        for answer in answers:
            for tree in answer.trees:
                matched.update((np.frombuffer(tree.feature_bins, "<u2") >> 3 & 7).tolist())
        for _ in range(4):
            assert stub.Search.future(request(beam_width=0)).code() == grpc.StatusCode.INVALID_ARGUMENT
        queries = [ngram_pb2.ScoreQuery(context=[1], candidates=[2])] * 7
        stub.Score(ngram_pb2.ScoreRequest(tokenizer_fingerprint=FINGERPRINT, queries=queries))
        assert stub.Score.future(ngram_pb2.ScoreRequest(tokenizer_fingerprint="00")).code() == grpc.StatusCode.NOT_FOUND
        values = scrape(endpoint.address)

    def value(name: str, **labels: str) -> float:
        return values[f"dartspec_ngram_{name}", tuple(sorted(labels.items()))]

    assert value("calls_total", method="Search", code="OK") == 3
    assert value("calls_total", method="Search", code="INVALID_ARGUMENT") == 4
    assert value("calls_total", method="SearchStream", code="OK") == 1
    assert value("calls_total", method="Score", code="OK") == 1
    assert value("calls_total", method="Score", code="NOT_FOUND") == 1
    assert value("queries_total", kind="search") == 42 + 15
    assert value("queries_total", kind="score") == 7
    assert value("search_seconds_count") == value("search_seconds_bucket", le="+Inf") == 42 + 15
    assert 0 < value("search_seconds_sum") < 10
    assert value("call_seconds_count", method="Search") == 7
    # An unseen context of two tokens has one row less; at most one of each length a node and the root have.
    assert 42 + 15 <= value("contexts_total") <= 2 * (sum(matched.values()) + 42 + 15)
    for length in range(5):
        assert value("tree_nodes_total", matched=str(length)) == matched[length]
    assert sum(matched.values()) > 100
    assert matched[2] > 0
    assert (value("queue_queries"), value("queue_queries_limit")) == (0, 5000)
    assert (value("streams"), value("streams_limit")) == (0, 256)
    named = {"file": "served.ngx", "fingerprint": FINGERPRINT}
    size = Path(index.path).stat().st_size
    assert value("index_bytes", **named) == value("index_resident_bytes", **named) == size
    assert value("index_info", order="3", **named) == 1
    assert [value("index_nodes", length=str(length), **named) for length in (1, 2, 3)] == index.nodes
    assert value("swaps_total") == 0


def test_buckets_never_fall(server: ngram_index.Server, stub: ngram_pb2_grpc.NgramServiceStub) -> None:
    stub.Search(request(500))
    bounds = server.metrics()["bounds"]
    assert bounds == sorted(bounds)
    with MetricsEndpoint("127.0.0.1:0") as endpoint:
        endpoint.show(ServiceCollector(server, Reloader(server, [], "mmap")))
        values = scrape(endpoint.address)
    buckets = [
        (dict(labels)["le"], count) for (name, labels), count in values.items() if "search_seconds_bucket" in name
    ]
    ordered = [count for _, count in sorted(buckets, key=lambda pair: float(pair[0]))]
    assert len(ordered) == len(bounds) + 1
    assert ordered == sorted(ordered)
    assert ordered[-1] == 500


async def test_swaps_are_counted(server: ngram_index.Server, index: ngram_index.Index) -> None:
    path = Path(index.path)
    reloader = Reloader(server, [Served(index.path, FINGERPRINT, FileIdentity.of(index.path))], "mmap")
    await reloader.reload()
    new = path.with_suffix(".new")
    new.write_bytes(path.read_bytes())
    new.rename(path)
    for _ in range(2):
        await reloader.reload()
    with MetricsEndpoint("127.0.0.1:0") as endpoint:
        endpoint.show(ServiceCollector(server, reloader))
        assert scrape(endpoint.address)["dartspec_ngram_swaps_total", ()] == 1


def test_an_address_in_use_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(FailedPrecondition, match=f"--metrics-listen: cannot listen on {address}"):
            MetricsEndpoint(address)


def test_the_command_serves_metrics(index: ngram_index.Index, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    arguments = ["--index", index.path, "--listen", f"unix:{tmp_path}/s.sock", "--metrics-listen", address]
    with serving(*arguments) as (process, line):
        assert "ready" in line
        values = scrape(address)
        assert values["dartspec_ngram_queue_queries", ()] == 0
        process.terminate()
        assert process.wait(20) == 0
    with serving(*arguments[:-1], "unix:/x") as (process, said):
        assert "--metrics-listen" in said
        assert process.wait(20) == 2
