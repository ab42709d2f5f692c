"""What `dartspec doctor` finds, thing by thing, and as a whole."""

from __future__ import annotations

import json
import socket

import pytest

from dartspec.cli import checks
from dartspec.cli.checks import FAIL, OK, WARN
from dartspec.services.common.fingerprint import digest
from dartspec.services.common.machine import Machine, native_dtype, read_machine
from tests.unit.cli.command import dartspec


def machine(flags: str = "avx2", gpus: tuple[str, ...] = (), available: int = 16 << 30) -> Machine:
    return Machine("a processor", 4, frozenset(flags.split()), 32 << 30, available, gpus)


@pytest.mark.parametrize(
    ("flags", "gpus", "device", "expected"),
    [
        ("avx2 avx512f", (), "auto", "float32"),
        ("avx512_bf16", (), "auto", "bfloat16"),
        ("amx_bf16 avx512_bf16", (), "cpu", "bfloat16"),
        ("asimd bf16", (), "cpu", "bfloat16"),
        ("avx2", ("card",), "auto", "bfloat16"),
        ("avx2", ("card",), "cpu", "float32"),
        ("avx2", (), "cuda:1", "bfloat16"),
    ],
)
def test_dtype_is_bfloat16_where_it_is_native(flags, gpus, device, expected):
    assert native_dtype(machine(flags, gpus), device)[0] == expected


def test_this_machine_is_read():
    found = read_machine()
    assert found.processor
    assert found.cores >= 1
    assert 0 < found.memory_available <= found.memory_total


def test_little_memory_is_a_warning():
    statuses = {f.name: f.status for f in checks.check_machine(machine(available=1 << 30), "cpu")}
    assert statuses["memory"] == WARN
    assert statuses["processor"] == OK


def test_head_of_a_directory_and_what_is_wrong_with_it(tmp_path):
    assert checks.check_head("none", "m").status == OK
    assert checks.check_head(None, "no-such-model").status == WARN
    assert checks.check_head("owner/name", "m").status == WARN
    assert checks.check_head(str(tmp_path), "m").status == FAIL
    (tmp_path / "config.json").write_text(json.dumps({"target_fingerprint": "abc"}))
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    finding = checks.check_head(str(tmp_path), "m")
    assert finding.status == OK
    assert finding.detail == f"{tmp_path}, weights {digest(b'weights')}, made for abc"
    (tmp_path / "config.json").write_text("{")
    assert checks.check_head(str(tmp_path), "m").status == FAIL


def test_model_on_disk_or_elsewhere(tmp_path):
    assert checks.check_model(str(tmp_path)).status == OK
    assert checks.check_model("owner/name").status == WARN


def test_index_that_is_none_or_no_index(tmp_path):
    pytest.importorskip("ngram_index")
    assert checks.check_index("none", "m").status == OK
    assert checks.check_index(None, "no-such-model").status == OK
    file = tmp_path / "x.ngx"
    file.write_bytes(b"not an index")
    finding = checks.check_index(str(file), "m")
    assert finding.status == FAIL
    assert str(file) in finding.detail


def test_a_port_in_use_makes_a_stack_impossible():
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        findings = list(checks.check_ports([f"127.0.0.1:{port}", "127.0.0.1:0"]))
    assert [(f.name, f.status) for f in findings] == [("port", FAIL), ("port", OK), ("unix sockets", OK)]


def test_cache_that_cannot_be_written(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert checks.check_cache().status == OK
    assert (tmp_path / "dartspec").is_dir()
    file = tmp_path / "file"
    file.touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(file))
    assert checks.check_cache().status == FAIL


async def test_the_whole_as_json_and_exit_code_1_for_a_failure(tmp_path):
    arguments = ["--listen", "127.0.0.1:0", "--head", "none", "--index", "none", "--json"]
    good = await dartspec("doctor", *arguments, XDG_CACHE_HOME=str(tmp_path))
    value = json.loads(good.out)
    assert value["possible"] == (good.code == 0)
    by_name = {finding["name"]: finding for finding in value["findings"]}
    assert {"processor", "memory", "GPU", "dtype", "python", "grpcio", "model", "port", "cache"} <= by_name.keys()
    bad = await dartspec("doctor", "--listen", "nonsense", "--head", "none", "--index", "none")
    assert bad.code == 1
    assert "FAIL  port" in bad.out
    assert bad.out.splitlines()[-1].startswith("a stack cannot run here: ")
