"""What the service refuses because it would be too much."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import ngram_index
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from dartspec.v1 import ngram_pb2_grpc

from .served import DOCUMENTS, assert_refused, open_channel, request, slow_request
from .support import build


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> ngram_index.Index:
    return build(tmp_path_factory.mktemp("limits") / "x.ngx", DOCUMENTS, 3, 20)


@pytest.fixture
def server(index: ngram_index.Index, tmp_path: Path) -> Iterator[ngram_index.Server]:
    with ngram_index.Server([index], [f"unix:{tmp_path}/s.sock"], max_queries=10, max_queue=10) as server:
        yield server


@pytest.fixture
def stub(server: ngram_index.Server) -> Iterator[ngram_pb2_grpc.NgramServiceStub]:
    with open_channel(server.addresses[0]) as channel:
        yield ngram_pb2_grpc.NgramServiceStub(channel)


def test_queries_of_a_request(stub: ngram_pb2_grpc.NgramServiceStub) -> None:
    assert len(stub.Search(request(10)).trees) == 10
    message = assert_refused(stub.Search.future(request(11)), grpc.StatusCode.INVALID_ARGUMENT, "queries")
    assert "at most 10, got 11" in message


def test_a_full_queue_says_when_to_try_again(server: ngram_index.Server, stub: ngram_pb2_grpc.NgramServiceStub) -> None:
    wanted = slow_request(10)
    calls = [stub.Search.future(wanted) for _ in range(6)]
    codes = [call.code() for call in calls]
    assert grpc.StatusCode.OK in codes
    refused = [call for call in calls if call.code() != grpc.StatusCode.OK]
    assert refused
    for call in refused:
        message = assert_refused(call, grpc.StatusCode.RESOURCE_EXHAUSTED, "limit of 10")
        retry = error_details_pb2.RetryInfo()
        assert rpc_status.from_call(call).details[0].Unpack(retry)
        assert 0 < retry.retry_delay.ToMilliseconds() <= 5000
        assert "try again in" in message
    assert server.metrics()["queue"] == (0, 10)
    assert len(stub.Search(request(10)).trees) == 10


def test_calls_that_are_cancelled_leave_the_queue(
    server: ngram_index.Server, stub: ngram_pb2_grpc.NgramServiceStub
) -> None:
    call = stub.Search.future(slow_request(10))
    deadline = time.monotonic() + 20
    while server.metrics()["queue"][0] == 0 and not call.done() and time.monotonic() < deadline:
        time.sleep(0.001)
    call.cancel()
    while server.metrics()["queue"][0] and time.monotonic() < deadline:
        time.sleep(0.01)
    assert server.metrics()["queue"] == (0, 10)


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"max_queries": 0}, "max_queries: must be at least 1, got 0"),
        ({"max_queue": 9, "max_queries": 10}, "max_queue: must be at least max_queries, 10, got 9"),
        ({"max_streams": 0}, "max_streams: must be at least 1, got 0"),
        ({"threads": 0}, "threads: must be at least 1, got 0"),
    ],
)
def test_limits_that_make_no_sense(index: ngram_index.Index, limits: dict[str, Any], message: str) -> None:
    with pytest.raises(ngram_index.NgramError, match=message) as error:
        ngram_index.Server([index], ["127.0.0.1:0"], **limits)
    assert error.value.field == message.partition(":")[0]
