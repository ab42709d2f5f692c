"""An index of synthetic counts shaped like those of real text: `python -m bench.synthetic --output FILE [--nodes N]`.

Text of the size that a full index needs is not everywhere at hand, so counts are drawn instead, in the order that an
index is written in. How often each token was seen and how many different tokens follow it come from the measured
corpus, and grow with the size as they did there; how many tokens follow a bigram depends on how often it was seen,
which hardly changed between 5 and 156 million tokens; what follows a bigram are successors of its second token; and
counts have the shares of real text, tilted so that the mean is right. `bench/README.md` compares the result with real
text.

`--compare` measures the index that was made and sets its shape against that of the measured corpus; at their sizes
they should agree within a tenth. The last line is a JSON object.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import click

from bench.rust_program import run_program

SHAPE_FILE = Path(__file__).parent / "synthetic_shape.json"
VOCAB_SIZE = 49_152
FINGERPRINT = "5e7c0de500000000"
COMPARED = (
    "nodes",
    "bigrams",
    "trigrams",
    "children_per_context",
    "one_child_share",
    "trigrams_once_share",
    "bigrams_once_share",
)


def read_shape() -> dict[str, Any]:
    """The tables that `bench.synthetic_fit` made."""
    tables: dict[str, Any] = json.loads(SHAPE_FILE.read_text())
    return tables


def make_index(
    output: Path,
    *,
    nodes: int,
    memory: int = 1 << 30,
    seed: int = 1,
    shape: dict[str, Any] | None = None,
    fingerprint: str = FINGERPRINT,
) -> dict[str, Any]:
    """Write an index with about so many nodes; 0 for a corpus of the measured size. Returns what was written."""
    with tempfile.TemporaryDirectory(dir=output.parent, prefix=output.name + ".scratch-") as scratch:
        request = {
            "shape": shape or read_shape(),
            "output": str(output),
            "scratch": scratch,
            "memory": memory,
            "vocab_size": VOCAB_SIZE,
            "nodes": nodes,
            "seed": seed,
            "fingerprint": fingerprint,
        }
        return run_program("bench_synth", request)


def index_shape(index: Path) -> dict[str, Any]:
    """The shape of an index of order 3, as `bench.corpus_shape` describes that of text."""
    return run_program("bench_shape", {"index": str(index)})


@click.command(help=__doc__)
@click.option("--output", "-o", required=True, type=click.Path(path_type=Path), help="The index (.ngx) to write.")
@click.option("--nodes", default=0.0, help="n-grams of all lengths to aim at; 0 for a corpus of the measured size.")
@click.option("--memory-mb", default=1024, show_default=True, help="Memory for sorting, besides 6 bytes a bigram.")
@click.option("--seed", default=1, show_default=True, help="Equal seeds give equal files.")
@click.option("--compare", is_flag=True, help="Set the shape of the result against that of real text.")
def main(output: Path, nodes: float, memory_mb: int, seed: int, compare: bool) -> None:
    report = make_index(output, nodes=int(nodes), memory=memory_mb << 20, seed=seed)
    report["bytes_per_node"] = round(report["bytes"] / report["nodes"], 3)
    if compare:
        shape, real = index_shape(output), read_shape()["measured"]
        report["shape"] = shape
        report["to_real_text"] = {name: round(shape[name] / real[name], 3) for name in COMPARED}
    print(json.dumps(report))


if __name__ == "__main__":
    main()
