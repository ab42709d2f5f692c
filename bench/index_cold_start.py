"""How soon an index answers after its pages were dropped: `python -m bench.index_cold_start [--index FILE | --nodes
N]`.

Each trial writes the file's pages back, asks the system to forget them, and opens the index in a fresh process: once
to search a tree at once, once to read everything first (the prefault), next to a plain read of the same file. The
last line is a JSON object: `first_answer_ms` (from `open` to the first tree, median), `process_ms` (from the start of
the process), `prefault_mb_per_s` and `read_mb_per_s`, and the share of the file that was still in memory after it was
to be forgotten, without which the other numbers mean nothing.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import click
from tqdm import tqdm

from bench.index_process import MEGABYTE, ROOT
from bench.synthetic import make_index

CHUNK = 8 * MEGABYTE
DROP_FILE = Path("/proc/sys/vm/drop_caches")

CHILD = """
import sys, time, json
import numpy as np, ngram_index
path, backing, width = sys.argv[1], sys.argv[2], 25
start = time.perf_counter()
index = ngram_index.Index.open(path, backing)
opened = time.perf_counter()
random = np.random.default_rng(int(sys.argv[3]))
tokens = random.integers(0, index.vocab_size, 8 * width).astype("<i4")
logprobs = np.tile(np.log(0.5 / np.arange(1, width + 1)), 8).astype("<f4")
context = random.integers(0, index.vocab_size, index.order - 1).tolist()
tree = index.search(context, [width] * 8, tokens, logprobs)
print(json.dumps({"open_s": opened - start, "answer_s": time.perf_counter() - start, "nodes": len(tree)}))
"""


def forget(path: Path, everything: bool) -> None:
    """Drop a file from the page cache, or all files where the user may."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)
    if everything:
        DROP_FILE.write_text("1\n")


def resident_share(path: Path) -> float:
    """How much of a file is in memory."""
    size = path.stat().st_size
    pages = -(-size // mmap.PAGESIZE)
    states = (ctypes.c_ubyte * pages)()
    libc = ctypes.CDLL(None, use_errno=True)
    with path.open("rb") as file, mmap.mmap(file.fileno(), size, flags=mmap.MAP_PRIVATE) as mapped:
        view = (ctypes.c_char * 1).from_buffer(mapped)
        failed = libc.mincore(ctypes.byref(view), ctypes.c_size_t(size), states)
        del view
    if failed:
        raise click.ClickException(f"the system does not say which pages of {path} are in memory")
    return sum(state & 1 for state in states) / pages


def read_through(path: Path) -> float:
    """Seconds for a plain read of a file."""
    buffer = bytearray(CHUNK)
    start = time.perf_counter()
    with path.open("rb", buffering=0) as file:
        while file.readinto(buffer):
            pass
    return time.perf_counter() - start


def child(path: Path, backing: str, seed: int) -> dict[str, Any]:
    """Open and search in a fresh process."""
    start = time.perf_counter()
    run = subprocess.run(
        [sys.executable, "-c", CHILD, str(path), backing, str(seed)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    if run.returncode != 0:
        raise click.ClickException(f"opening {path} failed; the error is above")
    return json.loads(run.stdout) | {"process_s": time.perf_counter() - start}


def report(path: Path, trials: int, everything: bool) -> dict[str, Any]:
    """All trials of one file."""
    first, prefault, reads, left = [], [], [], []
    for trial in tqdm(range(trials), unit="trial"):
        forget(path, everything)
        left.append(resident_share(path))
        first.append(child(path, "mmap", trial))
        forget(path, everything)
        prefault.append(child(path, "populate", trial)["open_s"])
        forget(path, everything)
        reads.append(read_through(path))
    megabytes = path.stat().st_size / 1e6
    return {
        "first_answer_ms": round(statistics.median(entry["answer_s"] for entry in first) * 1e3, 2),
        "open_ms": round(statistics.median(entry["open_s"] for entry in first) * 1e3, 2),
        "process_ms": round(statistics.median(entry["process_s"] for entry in first) * 1e3, 1),
        "prefault_mb_per_s": round(megabytes / statistics.median(prefault), 1),
        "read_mb_per_s": round(megabytes / statistics.median(reads), 1),
        "left_in_memory": round(max(left), 4),
        "bytes": path.stat().st_size,
        "trials": trials,
    }


@click.command(help=__doc__)
@click.option("--index", type=click.Path(path_type=Path, exists=True, dir_okay=False), help="Index to open.")
@click.option("--nodes", default=6e7, show_default=True, help="Without --index: nodes of a synthetic index.")
@click.option("--trials", default=3, show_default=True, help="How often; the medians are reported.")
@click.option("--drop-caches", is_flag=True, help="Forget all files, not only this one; needs root.")
@click.option("--folder", type=click.Path(path_type=Path, exists=True), help="Where an index is made for the run.")
def main(index: Path | None, nodes: float, trials: int, drop_caches: bool, folder: Path | None) -> None:
    with tempfile.TemporaryDirectory(dir=folder) as made:
        if index is None:
            index = Path(made) / "cold.ngx"
            make_index(index, nodes=int(nodes))
        result = report(index, trials, drop_caches)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
