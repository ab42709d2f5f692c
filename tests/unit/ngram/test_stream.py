"""SearchStream: order, errors in the middle, slow readers, limits, the end of the service."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import ngram_index
import pytest

from dartspec.v1 import ngram_pb2, ngram_pb2_grpc

from .served import DOCUMENTS, assert_refused, open_channel, request
from .support import build


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> ngram_index.Index:
    return build(tmp_path_factory.mktemp("stream") / "x.ngx", DOCUMENTS, 3, 20)


@pytest.fixture
def server(index: ngram_index.Index, tmp_path: Path) -> Iterator[ngram_index.Server]:
    with ngram_index.Server([index], [f"unix:{tmp_path}/s.sock"], max_streams=2) as server:
        yield server


@pytest.fixture
def stub(server: ngram_index.Server) -> Iterator[ngram_pb2_grpc.NgramServiceStub]:
    with open_channel(server.addresses[0]) as channel:
        yield ngram_pb2_grpc.NgramServiceStub(channel)


class Requests:
    """An iterator of requests that are put in one by one; None ends it."""

    def __init__(self) -> None:
        self.queue: queue.Queue[ngram_pb2.SearchRequest | None] = queue.Queue()

    def __iter__(self) -> Iterator[ngram_pb2.SearchRequest]:
        return iter(self.queue.get, None)


def searched(server: ngram_index.Server) -> int:
    """Queries searched so far."""
    return sum(server.metrics()["search_times"][0])


def test_answers_come_in_order_and_equal_those_of_search(stub: ngram_pb2_grpc.NgramServiceStub) -> None:
    # Sizes differ, so that later ones are done before earlier ones.
    wanted = [request(count=200 if i % 5 == 0 else i % 3, first=i, node_budget=9) for i in range(100)]
    answers = list(stub.SearchStream(iter(wanted)))
    assert len(answers) == len(wanted)
    for one, answer in zip(wanted, answers, strict=True):
        assert list(answer.trees) == list(stub.Search(one).trees)


def test_each_answer_comes_before_the_next_request(stub: ngram_pb2_grpc.NgramServiceStub) -> None:
    requests = Requests()
    call = stub.SearchStream(iter(requests))
    for i in range(20):
        requests.queue.put(request(1, first=i))
        assert len(next(call).trees) == 1
    requests.queue.put(None)
    assert list(call) == []
    assert call.code() == grpc.StatusCode.OK


@pytest.mark.parametrize("at", [0, 7])
def test_a_bad_request_ends_the_stream_after_the_answers_before_it(
    stub: ngram_pb2_grpc.NgramServiceStub, at: int
) -> None:
    wanted = [request(1, first=i) for i in range(20)]
    wanted[at].queries[0].proposals.widths[1] = 0
    call = stub.SearchStream(iter(wanted))
    answers = []
    with pytest.raises(grpc.RpcError):
        answers.extend(iter(call.next, None))
    assert len(answers) <= at  # an error may overtake answers that the client has not read
    assert_refused(call, grpc.StatusCode.INVALID_ARGUMENT, "queries[0].proposals.widths")


def test_a_client_that_does_not_read_is_not_read_from(
    server: ngram_index.Server, stub: ngram_pb2_grpc.NgramServiceStub
) -> None:
    count, batch = 1500, 50
    call = stub.SearchStream(request(batch, first=i) for i in range(count))
    next(call)
    before = -1
    while searched(server) != before:
        before = searched(server)
        time.sleep(0.5)
    assert before < count * batch / 2
    assert sum(1 for _ in call) == count - 1
    assert searched(server) == count * batch


def test_streams_beyond_the_limit_are_refused(
    server: ngram_index.Server, stub: ngram_pb2_grpc.NgramServiceStub
) -> None:
    requests = [Requests(), Requests()]
    calls = [stub.SearchStream(iter(each)) for each in requests]
    for each, call in zip(requests, calls, strict=True):
        each.queue.put(request())
        next(call)
    assert server.metrics()["streams"] == (2, 2)
    assert_refused(
        stub.SearchStream(iter([request()])), grpc.StatusCode.RESOURCE_EXHAUSTED, "2 search streams are open"
    )
    assert len(stub.Search(request()).trees) == 1
    requests[0].queue.put(None)
    assert list(calls[0]) == []
    assert len(list(stub.SearchStream(iter([request()])))) == 1
    # A client that goes away leaves no stream behind.
    calls[1].cancel()
    requests[1].queue.put(None)
    deadline = time.monotonic() + 10
    while server.metrics()["streams"][0] and time.monotonic() < deadline:
        time.sleep(0.01)
    assert server.metrics()["streams"] == (0, 2)


def test_the_end_of_the_service_ends_idle_streams_at_once(
    server: ngram_index.Server, stub: ngram_pb2_grpc.NgramServiceStub
) -> None:
    requests = Requests()
    call = stub.SearchStream(iter(requests))
    requests.queue.put(request())
    next(call)
    start = time.monotonic()
    ended: list[bool] = []
    stopper = threading.Thread(target=lambda: ended.append(server.stop(20)))
    stopper.start()
    assert_refused(call, grpc.StatusCode.UNAVAILABLE, "stopping")
    requests.queue.put(None)
    stopper.join()
    assert ended == [True]
    assert time.monotonic() - start < 10
