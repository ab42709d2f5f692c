"""Services that cannot work say why in one line and exit with 2."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from .tiny_model import TinyModel, make_tiny_model


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "dartspec.cli.main", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def refused(result: subprocess.CompletedProcess[str], *words: str) -> None:
    assert result.returncode == 2, result.stderr
    assert "Traceback" not in result.stderr
    last = result.stderr.strip().splitlines()[-1]
    for word in words:
        assert word in last


def verifier(*arguments: str) -> subprocess.CompletedProcess[str]:
    return run("verifier", "serve", "--listen", "127.0.0.1:0", "--log-level", "error", *arguments)


def test_missing_model_directory() -> None:
    refused(verifier("--model", "./nowhere"), "model", "./nowhere")


def test_unsupported_architecture(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]}))
    refused(verifier("--model", str(tmp_path)), "gpt2", "llama", "qwen3")


def test_head_for_another_target(tiny: TinyModel, tmp_path: Path) -> None:
    other = make_tiny_model(tmp_path, seed=1)
    refused(verifier("--model", str(tiny.model), "--head", str(other.head)), "head", "target")


def test_missing_head(tiny: TinyModel) -> None:
    refused(verifier("--model", str(tiny.model), "--head", "./no-head"), "no-head")


@pytest.mark.parametrize("service", ["verifier", "gateway", "ngram"])
def test_port_in_use(tiny: TinyModel, service: str) -> None:
    own = {"verifier": ["--model", str(tiny.model)], "gateway": [], "ngram": ["--index", str(tiny.index)]}
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        refused(run(service, "serve", "--listen", address, *own[service]), address)


def test_index_for_another_tokenizer(tiny: TinyModel, tmp_path: Path) -> None:
    from .tiny_model import make_index

    foreign = make_index(tmp_path, "0123456789abcdef0123456789abcdef", tiny.vocab_size)
    result = run(
        *("generate", "hello", "--local", "--model", str(tiny.model), "--head", str(tiny.head)),
        *("--index", str(foreign), "--dtype", "float32"),
    )
    refused(result, "index", "0123456789abcdef0123456789abcdef", tiny.fingerprint)


def test_a_setting_out_of_range_is_named() -> None:
    refused(verifier("--top-k", "0"), "--top-k")
    refused(verifier("--budget", "many"), "--budget")
    refused(verifier("--context-length", "5"), "--context-length")
    refused(verifier("--memory", "lots"), "--memory", "512M")
    refused(verifier("--memory", "1M"), "--memory", "64M")


def test_too_few_kv_positions(tiny: TinyModel) -> None:
    refused(
        verifier("--model", str(tiny.model), "--kv-positions", "512", "--budget", "fixed:600"), "kv_positions", "600"
    )
