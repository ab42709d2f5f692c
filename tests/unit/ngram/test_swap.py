"""Replacing the index of a running service."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import grpc
import ngram_index
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from dartspec.v1 import ngram_pb2, ngram_pb2_grpc

from .served import open_channel, request
from .serving import Log, serving
from .support import FINGERPRINT

OTHER = "ffeeddccbbaa99887766554433221100"
CALLERS = 4
SWAPS = 100
# After 1 comes 2 in one version, and 3 in the other.
VERSIONS = {"two": [1, 2] * 50, "three": [1, 3] * 50}


def write(path: Path, version: str, fingerprint: str = FINGERPRINT) -> Path:
    """An index file of a version, renamed into place."""
    tokens = np.array(VERSIONS[version], np.uint16)
    builder = ngram_index.Builder(3, 20)
    builder.add(tokens, np.array([0, len(tokens)]))
    new = path.with_suffix(".new")
    builder.finish(new, fingerprint, f'{{"version":"{version}"}}')
    os.replace(new, path)
    return path


def score(queries: int) -> ngram_pb2.ScoreRequest:
    query = ngram_pb2.ScoreQuery(context=[1], candidates=[2, 3])
    return ngram_pb2.ScoreRequest(tokenizer_fingerprint=FINGERPRINT, queries=[query] * queries)


@pytest.mark.parametrize("queries", [1, 3000])
def test_no_call_is_dropped_and_none_sees_two_versions(tmp_path: Path, queries: int) -> None:
    paths = [write(tmp_path / f"{version}.ngx", version) for version in VERSIONS]
    failures: list[object] = []
    seen: list[set[tuple[float, ...]]] = [set() for _ in range(CALLERS)]
    done = threading.Event()
    with ngram_index.Server([ngram_index.Index.open(paths[0])], [f"unix:{tmp_path}/s.sock"]) as server:

        def call(seen: set[tuple[float, ...]]) -> None:
            with open_channel(server.addresses[0]) as channel:
                stub = ngram_pb2_grpc.NgramServiceStub(channel)
                while not done.is_set():
                    try:
                        answer = stub.Score(score(queries))
                    except grpc.RpcError as error:
                        failures.append(error)
                        return
                    versions = {tuple(scores.probabilities) for scores in answer.scores}
                    if len(versions) != 1:
                        failures.append(versions)
                    seen |= versions

        callers = [threading.Thread(target=call, args=(each,)) for each in seen]
        for caller in callers:
            caller.start()
        for i in range(SWAPS):
            server.swap(ngram_index.Index.open(paths[(i + 1) % 2]))
            assert [index.path for index in server.indexes] == [str(paths[(i + 1) % 2])]
            time.sleep(0.01)  # for some calls
        done.set()
        for caller in callers:
            caller.join()
    assert failures == []
    assert set().union(*seen) == {(1.0, 0.0), (0.0, 1.0)}


def test_the_old_file_is_let_go(tmp_path: Path) -> None:
    path = write(tmp_path / "x.ngx", "two")
    with ngram_index.Server([ngram_index.Index.open(path)], [f"unix:{tmp_path}/s.sock"]) as server:
        write(path, "three")
        assert f"{path} (deleted)" in Path("/proc/self/maps").read_text()
        server.swap(ngram_index.Index.open(path))
        maps = Path("/proc/self/maps").read_text()
        assert f"{path} (deleted)" not in maps
        assert str(path) in maps


def test_an_index_for_a_tokenizer_that_is_not_served_is_refused(tmp_path: Path) -> None:
    first = ngram_index.Index.open(write(tmp_path / "x.ngx", "two"))
    other = ngram_index.Index.open(write(tmp_path / "y.ngx", "two", OTHER))
    with ngram_index.Server([first], [f"unix:{tmp_path}/s.sock"]) as server:
        with pytest.raises(ngram_index.NgramError, match=f"tokenizer {OTHER}, which is not served") as error:
            server.swap(other)
        assert error.value.field == "index"
        assert [index.fingerprint for index in server.indexes] == [FINGERPRINT]


def test_calls_are_answered_before_the_service_is_ready(tmp_path: Path) -> None:
    index = ngram_index.Index.open(write(tmp_path / "x.ngx", "two"))
    with (
        ngram_index.Server([index], [f"unix:{tmp_path}/s.sock"], ready=False) as server,
        open_channel(server.addresses[0]) as channel,
    ):
        health = health_pb2_grpc.HealthStub(channel)
        names = ["", ngram_pb2.DESCRIPTOR.services_by_name["NgramService"].full_name]

        def statuses() -> set[int]:
            return {health.Check(health_pb2.HealthCheckRequest(service=name)).status for name in names}

        assert statuses() == {health_pb2.HealthCheckResponse.NOT_SERVING}
        assert len(ngram_pb2_grpc.NgramServiceStub(channel).Search(request()).trees) == 1
        server.set_ready()
        assert statuses() == {health_pb2.HealthCheckResponse.SERVING}


def described(stub: ngram_pb2_grpc.NgramServiceStub) -> str:
    (index,) = stub.Describe(ngram_pb2.NgramServiceDescribeRequest(), timeout=20).indexes
    return str(index.manifest)


def wait_for(stub: ngram_pb2_grpc.NgramServiceStub, version: str) -> None:
    deadline = time.monotonic() + 20
    while version not in described(stub):
        assert time.monotonic() < deadline, described(stub)
        time.sleep(0.02)


@pytest.mark.parametrize("backing", ["populate", "copy", "mmap"])
def test_sighup_swaps_in_a_new_file_and_keeps_the_old_one_when_it_is_no_good(tmp_path: Path, backing: str) -> None:
    path = write(tmp_path / "x.ngx", "two")
    address = f"unix:{tmp_path}/s.sock"
    with serving("--index", str(path), "--listen", address, "--backing", backing) as (process, line):
        assert "ready" in line
        log = Log(process)
        with open_channel(address) as channel:
            stub = ngram_pb2_grpc.NgramServiceStub(channel)
            assert "two" in described(stub)
            write(path, "three")
            process.send_signal(signal.SIGHUP)
            log.wait_for("x.ngx: the new file is served")
            assert "three" in described(stub)
            write(path, "two", OTHER)
            process.send_signal(signal.SIGHUP)
            log.wait_for(f"x.ngx: the new file is for tokenizer {OTHER}, the old one was for {FINGERPRINT}")
            path.with_suffix(".new").write_text("hello")
            os.replace(path.with_suffix(".new"), path)
            process.send_signal(signal.SIGHUP)
            log.wait_for("x.ngx: not an n-gram file of this kind")
            path.unlink()
            process.send_signal(signal.SIGHUP)
            log.wait_for("cannot open")
            log.wait_for("the index that was loaded stays", 3)
            assert "three" in described(stub)
            write(path, "two")
            process.send_signal(signal.SIGHUP)
            log.wait_for("x.ngx: the new file is served", 2)
            assert "two" in described(stub)
        assert "Traceback" not in log.text


def test_files_are_looked_at_every_so_often(tmp_path: Path) -> None:
    path = write(tmp_path / "x.ngx", "two")
    address = f"unix:{tmp_path}/s.sock"
    with (
        serving("--index", str(path), "--listen", address, "--reload-every", "0.1"),
        open_channel(address) as channel,
    ):
        stub = ngram_pb2_grpc.NgramServiceStub(channel)
        for version in ["three", "two", "three"]:
            write(path, version)
            wait_for(stub, version)
