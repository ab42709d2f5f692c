"""NgramService as clients see it: answers, errors, addresses, the end."""

from __future__ import annotations

import itertools
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import grpc
import ngram_index
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from dartspec.v1 import ngram_pb2, ngram_pb2_grpc

from .served import DOCUMENTS, OFFSETS, assert_refused, open_channel, request
from .support import AUTHORITY, FINGERPRINT, build, search

OTHER = "ffeeddccbbaa99887766554433221100"
SERVICE = ngram_pb2.DESCRIPTOR.services_by_name["NgramService"].full_name


@pytest.fixture(scope="module")
def indexes(tmp_path_factory: pytest.TempPathFactory) -> list[ngram_index.Index]:
    folder = tmp_path_factory.mktemp("served")
    builder = ngram_index.Builder(4, 30)
    builder.add(np.array([1, 2, 3], np.uint16), np.array([0, 3]))
    builder.finish(folder / "other.ngx", OTHER, '{"about":"other"}')
    return [build(folder / "first.ngx", DOCUMENTS, 3, 20), ngram_index.Index.open(folder / "other.ngx")]


@pytest.fixture(scope="module")
def server(indexes: list[ngram_index.Index], tmp_path_factory: pytest.TempPathFactory) -> Iterator[ngram_index.Server]:
    path = tmp_path_factory.mktemp("socket") / "ngram.sock"
    with ngram_index.Server(indexes, ["127.0.0.1:0", f"unix:{path}"], max_message_bytes=1 << 20) as server:
        yield server


@pytest.fixture(params=[0, 1], ids=["tcp", "unix"])
def channel(server: ngram_index.Server, request: pytest.FixtureRequest) -> Iterator[grpc.Channel]:
    with open_channel(server.addresses[request.param]) as channel:
        yield channel


@pytest.fixture
def stub(channel: grpc.Channel) -> ngram_pb2_grpc.NgramServiceStub:
    return ngram_pb2_grpc.NgramServiceStub(channel)


@pytest.mark.parametrize("count", [0, 1, 50])
@pytest.mark.parametrize("mode", ["survival", "reference"])
def test_search_equals_the_search_in_process(
    stub: ngram_pb2_grpc.NgramServiceStub, indexes: list[ngram_index.Index], count: int, mode: str
) -> None:
    wanted = request(count, mode=ngram_pb2.SearchMode.Value(f"SEARCH_MODE_{mode.upper()}"), node_budget=9)
    wanted.params.stop_token_ids.append(12)
    answer = stub.Search(wanted)
    assert len(answer.trees) == count
    assert answer.search_us > 0
    for query, tree in zip(wanted.queries, answer.trees, strict=True):
        expected = search(indexes[0], query.context, OFFSETS, mode=mode, node_budget=9, stop_token_ids=[12])
        assert tree.revision == 1
        assert tree.token_ids == expected.token_ids
        assert tree.parents == expected.parents
        assert tree.survival == expected.survival
        assert tree.feature_bins == expected.feature_bins


def test_transition_scores_reach_the_search(
    stub: ngram_pb2_grpc.NgramServiceStub, indexes: list[ngram_index.Index]
) -> None:
    scores = {(u, v): (u - 2.0 * v) / 4.0 for u in range(20) for v in range(20)}  # exact in bfloat16
    flat = [scores[u, v] for (before, _), (here, _) in itertools.pairwise(OFFSETS) for u in before for v in here]
    trees = []
    ways: list[dict[str, float]] = [
        {},
        {"ngram_weight": 0.25, "transition_weight": 0.5},  # the defaults
        {"ngram_weight": 0.5, "transition_weight": 1.0},
        {"transition_weight": 0.0},
    ]
    for weights in ways:
        wanted = request(node_budget=30, **weights)
        bits = np.array(flat, np.float32).view(np.uint32) >> 16
        wanted.queries[0].proposals.transitions = bits.astype("<u2").tobytes()
        tree = stub.Search(wanted).trees[0]
        context = wanted.queries[0].context
        expected = search(indexes[0], context, OFFSETS, lambda u, v: scores[u, v], node_budget=30, **weights)
        assert (tree.token_ids, tree.survival) == (expected.token_ids, expected.survival)
        trees.append(tree)
    assert trees[0] == trees[1]
    assert trees[3] == stub.Search(request(node_budget=30)).trees[0]
    assert len({tree.survival for tree in trees}) == 3


@pytest.mark.parametrize(
    ("packed", "said"),
    [
        (b"\0\0\0", "must be whole 2-byte values, got 3 bytes"),
        (b"\0\0" * 5, "must be empty or hold 14 scores, the products of neighbouring widths, got 5"),
        (b"\0\0" * 13 + b"\x80\x7f", "must be finite, got inf at position 13"),
    ],
)
def test_bad_transition_scores_are_named(stub: ngram_pb2_grpc.NgramServiceStub, packed: bytes, said: str) -> None:
    wanted = request()
    wanted.queries[0].proposals.transitions = packed
    call = stub.Search.future(wanted)
    field = "queries[0].proposals.transitions"
    assert assert_refused(call, grpc.StatusCode.INVALID_ARGUMENT, field) == f"{field}: {said}"


def test_absent_parameters_have_the_documented_defaults(
    stub: ngram_pb2_grpc.NgramServiceStub, indexes: list[ngram_index.Index]
) -> None:
    wanted = request()
    wanted.ClearField("params")
    tree = stub.Search(wanted).trees[0]
    assert tree.survival == search(indexes[0], wanted.queries[0].context, OFFSETS, node_budget=59).survival
    assert len(stub.Search(request(node_budget=0)).trees[0].token_ids) == 0


def test_score(stub: ngram_pb2_grpc.NgramServiceStub, indexes: list[ngram_index.Index]) -> None:
    queries = [ngram_pb2.ScoreQuery(context=DOCUMENTS[i][:5], candidates=range(25)) for i in range(10)]
    answer = stub.Score(ngram_pb2.ScoreRequest(tokenizer_fingerprint=FINGERPRINT, queries=queries))
    for query, scores in zip(queries, answer.scores, strict=True):
        probabilities, matched = indexes[0].score(list(query.context), list(range(25)))
        assert list(scores.probabilities) == probabilities
        assert list(scores.matched) == list(matched)


def test_describe(stub: ngram_pb2_grpc.NgramServiceStub, indexes: list[ngram_index.Index]) -> None:
    described = stub.Describe(ngram_pb2.NgramServiceDescribeRequest()).indexes
    assert [index.tokenizer_fingerprint for index in described] == [FINGERPRINT, OTHER]
    for index, answer in zip(indexes, described, strict=True):
        assert answer.path == index.path
        assert (answer.order, answer.vocab_size, list(answer.nodes)) == (index.order, index.vocab_size, index.nodes)
        assert (answer.bytes, answer.manifest) == (os.path.getsize(index.path), index.manifest)


def test_the_fingerprint_selects_the_index(stub: ngram_pb2_grpc.NgramServiceStub) -> None:
    queries = [ngram_pb2.ScoreQuery(context=[1], candidates=[2])]
    other = stub.Score(ngram_pb2.ScoreRequest(tokenizer_fingerprint=OTHER, queries=queries))
    assert list(other.scores[0].probabilities) == [1.0]
    missing = stub.Score.future(ngram_pb2.ScoreRequest(tokenizer_fingerprint="00", queries=queries))
    message = assert_refused(missing, grpc.StatusCode.NOT_FOUND, "tokenizer_fingerprint")
    assert OTHER in message
    unnamed = stub.Search.future(ngram_pb2.SearchRequest())
    assert_refused(unnamed, grpc.StatusCode.INVALID_ARGUMENT, "tokenizer_fingerprint")


def test_bad_requests_name_the_field_and_the_next_one_is_answered(stub: ngram_pb2_grpc.NgramServiceStub) -> None:
    def refused(field: str, wanted: ngram_pb2.SearchRequest) -> None:
        assert_refused(stub.Search.future(wanted), grpc.StatusCode.INVALID_ARGUMENT, field)

    refused("params.node_budget", request(node_budget=1025))
    refused("params.beam_width", request(beam_width=0))
    refused("params.ngram_weight", request(ngram_weight=float("nan")))
    refused("params.mode", request(mode=9))
    refused("queries", request(4097))
    for count, at in [(1, 0), (5, 3)]:
        wanted = request(count)
        wanted.queries[at].ClearField("proposals")
        refused(f"queries[{at}].proposals", wanted)
        wanted = request(count)
        wanted.queries[at].proposals.revision = 2
        refused(f"queries[{at}].proposals.revision", wanted)
        wanted = request(count)
        wanted.queries[at].proposals.token_ids += b"x"
        refused(f"queries[{at}].proposals.token_ids", wanted)
        wanted = request(count)
        wanted.queries[at].proposals.logprobs = np.full(9, np.nan, "<f4").tobytes()
        refused(f"queries[{at}].proposals.logprobs", wanted)
        wanted = request(count)
        wanted.queries[at].proposals.widths[0] = 0
        refused(f"queries[{at}].proposals.widths", wanted)
    empty = ngram_pb2.ScoreRequest(tokenizer_fingerprint=FINGERPRINT, queries=[ngram_pb2.ScoreQuery(candidates=[1])])
    assert_refused(stub.Score.future(empty), grpc.StatusCode.INVALID_ARGUMENT, "queries[0].context")
    assert len(stub.Search(request()).trees) == 1


def test_messages_beyond_the_limit_are_refused(stub: ngram_pb2_grpc.NgramServiceStub) -> None:
    wanted = request()
    wanted.queries[0].context.extend([1] * (1 << 20))
    assert stub.Search.future(wanted).exception().code() == grpc.StatusCode.OUT_OF_RANGE
    assert len(stub.Search(request()).trees) == 1


def test_health_and_reflection(channel: grpc.Channel) -> None:
    health = health_pb2_grpc.HealthStub(channel)
    for name in ("", SERVICE):
        answer = health.Check(health_pb2.HealthCheckRequest(service=name))
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
    reflection = reflection_pb2_grpc.ServerReflectionStub(channel)
    asked = [reflection_pb2.ServerReflectionRequest(list_services="")]
    (answer,) = reflection.ServerReflectionInfo(iter(asked))
    names = {service.name for service in answer.list_services_response.service}
    assert {SERVICE, "grpc.health.v1.Health"} <= names
    asked = [reflection_pb2.ServerReflectionRequest(file_containing_symbol=SERVICE)]
    (answer,) = reflection.ServerReflectionInfo(iter(asked))
    assert answer.file_descriptor_response.file_descriptor_proto


def test_many_callers(server: ngram_index.Server) -> None:
    wanted = request(4)
    expected = None
    with grpc.insecure_channel(server.addresses[1], AUTHORITY) as channel:
        stub = ngram_pb2_grpc.NgramServiceStub(channel)
        expected = list(stub.Search(wanted).trees)
        calls = [stub.Search.future(wanted) for _ in range(200)]
        for call in calls:
            assert list(call.result().trees) == expected


def test_addresses_in_use(indexes: list[ngram_index.Index], server: ngram_index.Server, tmp_path: Path) -> None:
    for address in server.addresses:
        with pytest.raises(ngram_index.NgramError, match="address in use") as error:
            ngram_index.Server(indexes, [f"unix:{tmp_path}/new.sock", address])
        assert error.value.code == "address_in_use"
        assert list(tmp_path.iterdir()) == []


def test_a_stale_socket_is_replaced_and_other_files_are_not(indexes: list[ngram_index.Index], tmp_path: Path) -> None:
    stale = tmp_path / "stale.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(stale))
    with ngram_index.Server(indexes, [f"unix:{stale}"]) as server:
        assert server.port is None
        with grpc.insecure_channel(f"unix:{stale}", AUTHORITY) as channel:
            stub = ngram_pb2_grpc.NgramServiceStub(channel)
            assert len(stub.Describe(ngram_pb2.NgramServiceDescribeRequest()).indexes) == 2
    assert not stale.exists()
    stale.write_text("a file of somebody's")
    with pytest.raises(ngram_index.NgramError, match="is not a socket"):
        ngram_index.Server(indexes, [f"unix:{stale}"])
    assert stale.read_text() == "a file of somebody's"


@pytest.mark.parametrize(
    "address", ["", "127.0.0.1", "127.0.0.1:http", "127.0.0.1:70000", "unix:/no/such/folder/x.sock"]
)
def test_bad_addresses(indexes: list[ngram_index.Index], address: str) -> None:
    with pytest.raises(ngram_index.NgramError, match=r"listen"):
        ngram_index.Server(indexes, [address])


def test_two_indexes_for_one_tokenizer_are_refused(indexes: list[ngram_index.Index]) -> None:
    with pytest.raises(ngram_index.NgramError, match="serve one of them"):
        ngram_index.Server([indexes[0], indexes[0]], ["127.0.0.1:0"])
    with pytest.raises(ngram_index.NgramError, match="indexes: must hold at least one"):
        ngram_index.Server([], ["127.0.0.1:0"])


def test_stop_lets_a_running_call_finish_and_frees_the_address(indexes: list[ngram_index.Index]) -> None:
    server = ngram_index.Server(indexes, ["127.0.0.1:0"])
    waiter_saw: list[bool] = []
    waiter = threading.Thread(target=lambda: waiter_saw.append(server.wait(30)))
    waiter.start()
    assert not server.wait(0.01)
    with grpc.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        call = ngram_pb2_grpc.NgramServiceStub(channel).Search.future(request(4000))
        grpc.channel_ready_future(channel).result(10)
        assert server.stop(10)
        # Either it was running and could finish, or it had not arrived yet.
        assert call.code() in (grpc.StatusCode.OK, grpc.StatusCode.UNAVAILABLE)
    waiter.join()
    assert waiter_saw == [True]
    assert server.stop()
    ngram_index.Server(indexes, server.addresses).stop()
