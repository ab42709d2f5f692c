"""How fast an index is built, in how much memory: `python -m bench.index_build [SHARD ...] [--tokens N]`.

Runs `dartspec ngram build` as a process on pre-tokenised shards, synthetic ones unless given, and samples the
resident memory of the process and its children, files that they map included. The last line is a JSON object:
`tokens_per_s`, `peak_rss_mb`, `bytes_per_node`, `nodes`, and the most memory in each tenth of the run, which is to
stay flat.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
from pathlib import Path

import click
import numpy as np

from bench.index_process import MEGABYTE, ROOT, PeakMemory, command
from bench.shards import read_shard
from bench.synthetic import FINGERPRINT
from bench.synthetic_text import VOCAB_SIZE, write_shards

TENTHS = 10


def peaks(samples: list[int]) -> list[int]:
    """The most of each tenth of the samples, in megabytes."""
    parts = np.array_split(np.array(samples, np.int64), min(TENTHS, max(len(samples), 1)))
    return [int(part.max()) // MEGABYTE for part in parts if len(part)]


@click.command(help=__doc__)
@click.argument("shards", nargs=-1, type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--tokens", default=1e8, show_default=True, help="Without shards: synthetic tokens to count.")
@click.option("--order", default=3, show_default=True, help="Longest n-gram counted.")
@click.option("--memory", default="1G", show_default=True, help="What the builder may use.")
@click.option("--vocab-size", default=VOCAB_SIZE, show_default=True, help="Token ids are below this.")
@click.option("--folder", type=click.Path(path_type=Path, exists=True), help="Where shards and the index are made.")
@click.option("--keep", type=click.Path(path_type=Path), help="Keep the index under this name.")
def main(
    shards: tuple[Path, ...],
    tokens: float,
    order: int,
    memory: str,
    vocab_size: int,
    folder: Path | None,
    keep: Path | None,
) -> None:
    import ngram_index

    with tempfile.TemporaryDirectory(dir=folder) as made:
        paths = list(shards) or write_shards(Path(made) / "shards", int(tokens))
        total = sum(len(read_shard(path)[0]) for path in paths)
        output = keep or Path(made) / "built.ngx"
        arguments = ["ngram", "build", *map(str, paths), "--output", str(output), "--order", str(order)]
        arguments += ["--memory", memory, "--vocab-size", str(vocab_size), "--fingerprint", FINGERPRINT]
        start = time.perf_counter()
        with subprocess.Popen(command(*arguments), cwd=ROOT, stdout=subprocess.DEVNULL) as process:
            watch = PeakMemory(process.pid)
            watch.start()
            code = process.wait()
        seconds = time.perf_counter() - start
        peak = watch.stop()
        if code != 0:
            raise click.ClickException(f"the build ended with code {code}; its error is above")
        index = ngram_index.Index.open(output)
        nodes = sum(index.nodes)
        report = {
            "tokens_per_s": round(total / seconds),
            "peak_rss_mb": peak // MEGABYTE,
            "bytes_per_node": round(index.file_bytes / nodes, 3),
            "nodes": nodes,
            "nodes_by_length": index.nodes,
            "bytes": index.file_bytes,
            "tokens": total,
            "seconds": round(seconds, 2),
            "memory": memory,
            "rss_mb_by_tenth": peaks(watch.samples),
        }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
