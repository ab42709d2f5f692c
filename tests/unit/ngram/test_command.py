"""`dartspec ngram` from outside."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import grpc
import pytest

from dartspec.cli.main import main
from dartspec.services.common.fingerprint import tokenizer_fingerprint
from dartspec.v1 import ngram_pb2, ngram_pb2_grpc

from .serving import serving
from .support import AUTHORITY, FINGERPRINT, FIXTURES, needs_fixtures

IDS = ["--vocab-size", "400", "--fingerprint", FINGERPRINT, "--quiet"]


@pytest.fixture
def index(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    (tmp_path / "docs.txt").write_text("1 2 3 1 2 4\n1 2 3\n")
    path = tmp_path / "docs.ngx"
    assert main(["ngram", "build", str(tmp_path / "docs.txt"), "-o", str(path), *IDS]) == 0
    assert "4 1-grams, 4 2-grams, 4 3-grams" in capsys.readouterr().out
    return path


def test_inspect_and_verify(index: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ngram", "inspect", "--json", str(index)]) == 0
    what = json.loads(capsys.readouterr().out)
    assert (what["order"], what["nodes"], what["tokens"]) == (3, [4, 4, 4], 9)
    assert (what["fingerprint"], what["bytes"]) == (FINGERPRINT, index.stat().st_size)
    assert what["manifest"]["shards"][0]["name"] == "docs.txt"
    assert main(["ngram", "inspect", str(index)]) == 0
    assert FINGERPRINT in capsys.readouterr().out
    named = [section for section in what["sections"] if section["length"]]
    for section in named:
        assert section["bytes_per_node"] == pytest.approx(section["bytes"] / 4, abs=1e-3)
    assert {section["length"] for section in named} == {1, 2, 3}
    assert main(["ngram", "verify", str(index)]) == 0
    assert capsys.readouterr().out.endswith("docs.ngx: ok\n")


def test_damage_is_one_clear_line(index: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = bytearray(index.read_bytes())
    content[-100] ^= 1
    index.write_bytes(content)
    assert main(["ngram", "verify", str(index)]) != 0
    assert "error: " in (err := capsys.readouterr().err)
    assert "docs.ngx: corrupt: expected" in err
    index.write_bytes(content[:-1])
    assert main(["ngram", "inspect", str(index)]) != 0
    assert f"expected {len(content)} bytes, got {len(content) - 1}" in capsys.readouterr().err


def test_the_tokenizer_gives_size_and_fingerprint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    vocab = {f"t{i}": i for i in range(9)}
    tokenizers.Tokenizer(tokenizers.models.WordLevel(vocab, unk_token="t0")).save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "docs.txt").write_text("1 2 8\n")
    build = ["ngram", "build", str(tmp_path / "docs.txt"), "-o", str(tmp_path / "x.ngx"), "--quiet"]
    assert main([*build, "--tokenizer", str(tmp_path)]) == 0
    capsys.readouterr()
    assert main(["ngram", "inspect", "--json", str(tmp_path / "x.ngx")]) == 0
    what = json.loads(capsys.readouterr().out)
    assert (what["vocab_size"], what["fingerprint"]) == (9, tokenizer_fingerprint(vocab))
    assert main([*build, "--tokenizer", str(tmp_path), "--fingerprint", FINGERPRINT]) != 0
    assert "--fingerprint" in capsys.readouterr().err
    assert main([*build, "--tokenizer", str(tmp_path), "--vocab-size", "8"]) != 0
    assert "--vocab-size" in capsys.readouterr().err
    assert main([*build, "--tokenizer", str(tmp_path / "none.json")]) != 0
    assert "none.json does not exist" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--fingerprint", FINGERPRINT], "--vocab-size: must be given"),
        (["--vocab-size", "9"], "--fingerprint: must be given"),
        (["--vocab-size", "9", "--fingerprint", "XYZ"], "hexadecimal"),
        ([*IDS, "--order", "6"], "--order"),
        (["--vocab-size", "2", "--fingerprint", FINGERPRINT], "not below the vocabulary size 2"),
    ],
)
def test_wrong_settings(tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str) -> None:
    (tmp_path / "docs.txt").write_text("1 2 3\n")
    assert main(["ngram", "build", str(tmp_path / "docs.txt"), "-o", str(tmp_path / "x.ngx"), *arguments]) != 0
    assert message in capsys.readouterr().err


@needs_fixtures
def test_import(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "x.ngx"
    assert main(["ngram", "import", str(FIXTURES / "order3.trie"), "-o", str(path), *IDS]) == 0
    assert "335 1-grams" in capsys.readouterr().out
    assert main(["ngram", "verify", str(path)]) == 0
    cut = tmp_path / "cut.trie"
    cut.write_bytes((FIXTURES / "order3.trie").read_bytes()[:5000])
    assert main(["ngram", "import", str(cut), "-o", str(tmp_path / "y.ngx"), *IDS]) != 0
    assert "cut.trie: wrong size: expected" in capsys.readouterr().err
    assert not (tmp_path / "y.ngx").exists()


def test_serve_until_a_signal(index: Path, tmp_path: Path) -> None:
    path = tmp_path / "ngram.sock"
    arguments = ["--index", str(index), "--listen", f"unix:{path}", "--listen", "127.0.0.1:0"]
    with serving(*arguments) as (process, line):
        assert line.startswith(f"dartspec ngram ready on unix:{path} 127.0.0.1:")
        for address in line.split()[-2:]:
            with grpc.insecure_channel(address, AUTHORITY) as channel:
                stub = ngram_pb2_grpc.NgramServiceStub(channel)
                (described,) = stub.Describe(ngram_pb2.NgramServiceDescribeRequest(), timeout=20).indexes
                assert described.tokenizer_fingerprint == FINGERPRINT
        with serving(*arguments) as (_, other):
            assert "address in use" in other
            assert "Traceback" not in other
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
        assert not path.exists()
    # A killed one leaves its socket behind, and the next one starts all the same.
    with serving(*arguments) as (process, _):
        process.send_signal(signal.SIGKILL)
        process.wait(20)
        assert path.exists()
    with serving(*arguments) as (_, line):
        assert line.startswith("dartspec ngram ready")


def test_serve_refuses_a_bad_index(tmp_path: Path) -> None:
    (tmp_path / "x.ngx").write_text("hello")
    for arguments, message in [
        (["--index", str(tmp_path / "x.ngx")], "x.ngx: not an n-gram file"),
        (["--index", str(tmp_path / "none.ngx")], "none.ngx"),
        ([], "--index"),
    ]:
        start = time.monotonic()
        with serving("--listen", "127.0.0.1:0", *arguments) as (process, said):
            assert message in said
            assert "Traceback" not in said
            assert process.wait(20) != 0
        assert time.monotonic() - start < 60
