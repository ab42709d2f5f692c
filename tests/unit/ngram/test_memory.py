"""Where the bytes of an index live: backings, sharing between processes, memory nodes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import ngram_index
import numpy as np
import pytest

from dartspec.cli.main import main

from .support import FINGERPRINT

NODES = Path("/sys/devices/system/node")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of megabytes."""
    path = tmp_path_factory.mktemp("memory") / "x.ngx"
    tokens = np.random.default_rng(1).integers(0, 2000, 400_000, dtype=np.uint16)
    builder = ngram_index.Builder(3, 2000)
    builder.add(tokens, np.array([0, len(tokens)]))
    builder.finish(path, FINGERPRINT)
    assert path.stat().st_size > 2 << 20
    return path


@pytest.mark.parametrize("backing", ["mmap", "populate", "copy"])
def test_every_backing_answers_the_same(path: Path, backing: str) -> None:
    loading = ngram_index.Loading(path, backing)
    index = loading.result()
    assert loading.finished
    size = path.stat().st_size
    assert loading.progress == ((0, 0) if backing == "mmap" else (size, size))
    if backing != "mmap":
        assert ngram_index.resident_bytes(index) == size
    index.verify()
    other = ngram_index.Index.open(path, backing)
    for first in range(0, 2000, 97):
        assert index.successors([first]) == other.successors([first])
    with pytest.raises(ngram_index.NgramError, match="hands the index out once"):
        loading.result()


def test_only_a_copy_is_memory_of_our_own(path: Path) -> None:
    copied = ngram_index.Index.open(path, "copy")
    assert str(path) not in Path("/proc/self/maps").read_text()
    mapped = ngram_index.Index.open(path, "populate")
    assert memory_of("self", path)["Private_Dirty"] == 0
    assert copied.nodes == mapped.nodes


def test_bad_files_and_names(tmp_path: Path) -> None:
    (tmp_path / "x.ngx").write_text("hello")
    for backing in ["mmap", "populate", "copy"]:
        with pytest.raises(ngram_index.NgramError, match="not an n-gram file") as error:
            ngram_index.Loading(tmp_path / "x.ngx", backing).result()
        assert error.value.code == "not_an_index"
        with pytest.raises(ngram_index.NgramError, match="none") as error:
            ngram_index.Loading(tmp_path / "none.ngx", backing).result()
        assert error.value.code == "io"
    with pytest.raises(ngram_index.NgramError, match='must be mmap, populate or copy, got "ram"'):
        ngram_index.Loading(tmp_path / "x.ngx", "ram")


def memory_of(process: int | str, path: Path) -> dict[str, int]:
    """Rss, Pss and so on of a process's maps of a file, bytes."""
    sums: dict[str, int] = {}
    ours = False
    for line in Path(f"/proc/{process}/smaps").read_text().splitlines():
        words = line.split()
        if not words[0].endswith(":"):
            ours = line.endswith(str(path))
        elif ours and words[-1] == "kB":
            sums[words[0][:-1]] = sums.get(words[0][:-1], 0) + int(words[1]) * 1024
    return sums


@contextmanager
def holding(path: Path) -> Iterator[int]:
    """Another process that has all of the file mapped; its id."""
    program = (
        f"import ngram_index; index = ngram_index.Index.open({str(path)!r}, 'populate'); print(1, flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout
        assert process.stdout.readline() == "1\n"
        yield process.pid
        process.kill()


def test_processes_share_the_pages_of_a_file(path: Path) -> None:
    index = ngram_index.Index.open(path, "populate")
    size = path.stat().st_size
    alone = memory_of("self", path)
    assert alone["Rss"] >= size
    with holding(path) as other:
        together = [memory_of("self", path), memory_of(other, path)]
    for memory in together:
        assert memory["Rss"] >= size
        # Pss divides each page by the number of processes that map it.
        assert memory["Pss"] <= 0.6 * memory["Rss"]
        assert memory["Private_Clean"] + memory["Private_Dirty"] == 0
    assert sum(memory["Pss"] for memory in together) <= 1.1 * alone["Pss"]
    assert index.path == str(path)


def test_pages_by_node(path: Path) -> None:
    index = ngram_index.Index.open(path, "populate")
    pages = ngram_index.pages(index)
    assert pages["resident_bytes"] == path.stat().st_size
    assert pages["sampled"] == -(-path.stat().st_size // pages["page_bytes"])
    assert sum(pages["by_node"].values()) == pages["sampled"]
    if (NODES / "has_memory").exists():
        assert all((NODES / f"node{node}").is_dir() for node in pages["by_node"])


def test_inspect_says_where_the_pages_are(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    index = ngram_index.Index.open(path, "populate")
    assert main(["ngram", "inspect", "--json", "--pages", str(path)]) == 0
    what = json.loads(capsys.readouterr().out)
    assert what["bytes"] == index.file_bytes == what["pages"]["resident_bytes"]
    assert what["pages"]["resident_share"] == 1.0
    assert sum(what["pages"]["pages_by_node"].values()) == pytest.approx(
        index.file_bytes / os.sysconf("SC_PAGESIZE"), abs=1
    )
    assert main(["ngram", "inspect", "--pages", str(path)]) == 0
    text = capsys.readouterr().out
    assert f"in memory    {index.file_bytes:,} bytes, 100.0%" in text
    assert "lie where the process that read them first put them" in text


def run(program: str) -> str:
    """What a program prints, in a process of its own: policies stay with their threads."""
    argv = [sys.executable, "-c", f"import ngram_index, os\n{program}"]
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout


@pytest.mark.skipif(not (NODES / "node0" / "cpulist").exists(), reason="the kernel lists no memory nodes")
def test_policies_are_set_for_this_thread_and_those_it_starts() -> None:
    status = "[line.split() for line in open('/proc/thread-self/numa_maps')][0][1]"
    assert run(f"ngram_index.set_numa_policy('off'); print({status})").strip() == "default"
    assert run(f"ngram_index.set_numa_policy('interleave'); print({status})").startswith("interleave:")
    bound = run(f"ngram_index.set_numa_policy('bind:0'); print({status}, len(os.sched_getaffinity(0)))")
    policy, cpus = bound.split()
    assert policy == "bind:0"
    assert 1 <= int(cpus) <= (os.cpu_count() or 1)
    inherited = f"import threading\nt = threading.Thread(target=lambda: print({status}))\nt.start()\nt.join()"
    assert run(f"ngram_index.set_numa_policy('bind:0')\n{inherited}").strip() == "bind:0"


@pytest.mark.skipif(not (NODES / "has_memory").exists(), reason="the kernel lists no memory nodes")
def test_unknown_nodes_are_refused_before_anything_is_opened(capsys: pytest.CaptureFixture[str], path: Path) -> None:
    assert main(["ngram", "serve", "--index", str(path), "--numa", "bind:999"]) == 2
    assert "error: numa: there is no memory node 999; this machine has 0" in capsys.readouterr().err


@pytest.mark.parametrize("policy", ["", "bind", "bind:x", "bind:-1", "both"])
def test_bad_policies(policy: str, path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ngram_index.NgramError, match="must be off, interleave or bind:N") as error:
        ngram_index.set_numa_policy(policy)
    assert error.value.field == "numa"
    assert main(["ngram", "serve", "--index", str(path), "--numa", policy]) == 2
    assert "--numa" in capsys.readouterr().err


def test_a_file_of_another_kind_is_refused_before_it_is_read(tmp_path: Path) -> None:
    size = 1 << 40  # all of it a hole
    start = time.monotonic()
    with (tmp_path / "x.ngx").open("wb") as file:
        file.truncate(size)
    with pytest.raises(ngram_index.NgramError) as error:
        ngram_index.Loading(tmp_path / "x.ngx").result()
    assert error.value.code == "not_an_index"
    assert time.monotonic() - start < 30
