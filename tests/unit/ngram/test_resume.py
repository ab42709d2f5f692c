"""A build that is killed, interrupted or out of disk goes on, and ends in the same file."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from .support import FINGERPRINT, FIXTURES, needs_fixtures

VOCAB = 3000


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three shards of together 12 million tokens, each with one document longer than a batch."""
    folder = tmp_path_factory.mktemp("corpus")
    rng = np.random.default_rng(3)
    for number in range(3):
        tokens = (rng.random(4_000_000) ** 6 * VOCAB).astype(np.uint16)
        cuts = np.sort(rng.choice(np.arange(1, 2_000_000), 5000, replace=False))
        np.savez(folder / f"{number}.npz", tokens=tokens, offsets=np.concatenate([[0], cuts, [len(tokens)]]))
    return folder


def command(corpus: Path, output: Path, *more: str) -> list[str]:
    ids = ["--vocab-size", str(VOCAB), "--fingerprint", FINGERPRINT, "--memory", "64M", "--quiet"]
    return [sys.executable, "-m", "dartspec.cli.main", "ngram", "build", str(corpus), "-o", str(output), *ids, *more]


def environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("DARTSPEC_")}


def run(argv: list[str], limit: str = "") -> subprocess.CompletedProcess[str]:
    if limit:
        argv = ["sh", "-c", f'{limit}; exec "$@"', "sh", *argv]
    return subprocess.run(argv, env=environment(), capture_output=True, text=True, timeout=300, check=False)


@pytest.fixture(scope="module")
def whole(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, float]:
    """The index of an undisturbed build, and its seconds."""
    output = tmp_path_factory.mktemp("whole") / "x.ngx"
    start = time.monotonic()
    made = run(command(corpus, output))
    assert made.returncode == 0, made.stderr
    return output.read_bytes(), time.monotonic() - start


def test_killed_at_random_points(corpus: Path, whole: tuple[bytes, float], tmp_path: Path) -> None:
    content, seconds = whole
    output = tmp_path / "x.ngx"
    work = tmp_path / "x.ngx.build"
    rng = random.Random(7)
    killed = resumed = 0
    while killed < 12:
        process = subprocess.Popen(command(corpus, output), env=environment(), stderr=subprocess.PIPE, text=True)
        try:
            process.wait(rng.uniform(0.2, 1.0) * seconds)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
        said = process.communicate()[1]
        if process.returncode == 0:
            # It got through; what was done is there, and the next one starts from nothing.
            assert output.read_bytes() == content
            assert not work.exists()
            output.unlink()
            continue
        assert process.returncode == -signal.SIGKILL, said
        killed += 1
        resumed += (work / "journal.json").exists()
        # There is no half of an index, however short the moment between its appearing and the end.
        if output.exists():
            assert output.read_bytes() == content
            output.unlink()
        assert {path.name for path in tmp_path.iterdir()} <= {"x.ngx.build"}
    assert resumed > 0
    made = run(command(corpus, output))
    assert made.returncode == 0, made.stderr
    assert output.read_bytes() == content
    assert [path.name for path in tmp_path.iterdir()] == ["x.ngx"]


def test_memory_does_not_change_the_file(corpus: Path, whole: tuple[bytes, float], tmp_path: Path) -> None:
    made = run([*command(corpus, tmp_path / "x.ngx"), "--memory", "1G"])
    assert made.returncode == 0, made.stderr
    assert (tmp_path / "x.ngx").read_bytes() == whole[0]


def test_other_settings_and_changed_inputs_are_refused(corpus: Path, tmp_path: Path) -> None:
    output = tmp_path / "x.ngx"
    shard = tmp_path / "0.npz"
    shard.write_bytes((corpus / "0.npz").read_bytes())
    # Files of at most 8 MiB: runs fit, the index does not.
    assert run(command(shard, output), "ulimit -f 16384").returncode != 0
    assert (tmp_path / "x.ngx.build" / "journal.json").exists()
    refused = run(command(shard, output, "--order", "4"))
    assert refused.returncode != 0
    assert "order was 3, now 4" in refused.stderr
    assert "--restart" in refused.stderr
    os.utime(shard, ns=(0, 0))
    refused = run(command(shard, output))
    assert refused.returncode != 0
    assert "inputs was" in refused.stderr
    made = run(command(shard, output, "--restart"))
    assert made.returncode == 0, made.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0.npz", "x.ngx"]


@pytest.mark.parametrize("blocks", [64, 2048, 16384])
def test_a_full_disk_is_named_and_the_build_goes_on(
    corpus: Path, whole: tuple[bytes, float], tmp_path: Path, blocks: int
) -> None:
    output = tmp_path / "x.ngx"
    failed = run(command(corpus, output), f"ulimit -f {blocks}")
    assert failed.returncode not in (0, -signal.SIGXFSZ)
    assert "Traceback" not in failed.stderr
    assert "cannot write" in failed.stderr
    assert str(tmp_path) in failed.stderr
    assert not output.exists()
    assert [path.name for path in tmp_path.iterdir()] in ([], ["x.ngx.build"])
    made = run(command(corpus, output))
    assert made.returncode == 0, made.stderr
    assert output.read_bytes() == whole[0]


def test_an_interrupt_keeps_what_is_done(corpus: Path, whole: tuple[bytes, float], tmp_path: Path) -> None:
    output = tmp_path / "x.ngx"
    work = tmp_path / "x.ngx.build"
    process = subprocess.Popen(command(corpus, output), env=environment(), stderr=subprocess.PIPE, text=True)
    while not (work / "journal.json").exists() and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=60)[1]
    assert process.returncode != 0
    assert "Traceback" not in said
    assert work.exists()
    assert run(command(corpus, output)).returncode == 0
    assert output.read_bytes() == whole[0]


@needs_fixtures
@pytest.mark.parametrize("blocks", [8, 64])
def test_a_full_disk_during_an_import_or_a_merge_leaves_nothing(tmp_path: Path, blocks: int) -> None:
    ids = ["--vocab-size", "400", "--fingerprint", FINGERPRINT]
    ngram = [sys.executable, "-m", "dartspec.cli.main", "ngram"]
    trie, first = str(FIXTURES / "order5.trie"), str(tmp_path / "first.ngx")
    assert run([*ngram, "import", trie, "-o", first, *ids, "--quiet"]).returncode == 0
    for work in (["import", trie, *ids], ["merge", first, first]):
        failed = run([*ngram, *work, "-o", str(tmp_path / "x.ngx"), "--quiet"], f"ulimit -f {blocks}")
        assert failed.returncode not in (0, -signal.SIGXFSZ)
        assert "Traceback" not in failed.stderr
        assert "cannot write" in failed.stderr
        assert [path.name for path in tmp_path.iterdir()] == ["first.ngx"]
