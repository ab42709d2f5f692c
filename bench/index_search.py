"""How long the search of one tree takes: `python -m bench.index_search [--index FILE | --nodes N]`.

Rounds come from held-out text (`--held-out`, a token shard) or follow the counts of the index itself: contexts by
their frequency, each next token by how often it followed. Each offset's candidates are the true next token, what the
index knows to follow, drawn by frequency, and common tokens; draft probabilities fall from a sharp first offset to a
flat last one, and the true token's rank is drawn from them. Thousands of different rounds in random order, so that
what a round reads is in the memory but not in the processor's caches.

Settings are measured in turns, one thread. `hot` settings search each round twice and time the second, so that the
difference to the others is what waiting for memory costs. The last line is a JSON object: `p50_us` and `p99_us` in
`survival` mode, `reference_p50_us` and `reference_p99_us`, `baseline_ratio` (the time of a hash-map trie with the
reference's algorithm over ours in `reference` mode, on an index of --baseline-nodes held by both), the sweeps, the
same with a private copy on huge pages, and what single look-ups cost.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import click
import numpy as np

from bench.rust_program import run_program
from bench.shards import read_shard
from bench.synthetic import make_index

DEPTH, WIDTH, BEAM, BUDGET = 8, 25, 20, 59
MODES = ("survival", "reference")
SWEEPS = {"depth": (2, 4, 16), "width": (5, 10, 50), "beam": (5, 10, 40), "budget": (8, 16, 32, 128)}
SEED = 1


def setting(mode: str, name: str = "", hot: bool = False, transitions: bool = False, **changed: int) -> dict[str, Any]:
    """One way to search, the defaults unless changed."""
    values = {"depth": DEPTH, "width": WIDTH, "beam": BEAM, "budget": BUDGET} | changed
    return {"name": f"{mode}{name}", "mode": mode, "hot": hot, "transitions": transitions, **values}


def settings(sweep: bool) -> list[dict[str, Any]]:
    """The defaults in both modes, cold and hot, and each parameter changed alone."""
    found = [setting(mode, "_hot" if hot else "", hot) for mode in MODES for hot in (False, True)]
    found += [setting("survival", f"_transitions{'_hot' if hot else ''}", hot, True) for hot in (False, True)]
    if sweep:
        for parameter, values in SWEEPS.items():
            for mode in MODES:
                if parameter != "beam" or mode == "reference":
                    found += [setting(mode, f"_{parameter}_{value}", False, **{parameter: value}) for value in values]
    return found


def held_out_texts(shard: Path, rounds: int, order: int, depth: int) -> list[list[int]]:
    """Random pieces of a shard's documents: order - 1 tokens of context and `depth` more."""
    length = order - 1 + depth
    random = np.random.default_rng(SEED)
    tokens, offsets = read_shard(shard)
    ends = np.repeat(offsets[1:], np.diff(offsets))
    starts = np.flatnonzero(ends - np.arange(len(tokens)) >= length)
    chosen = random.choice(starts, min(rounds, len(starts)), replace=False)
    return [tokens[start : start + length].tolist() for start in chosen]


def time_of(report: dict[str, Any], name: str) -> dict[str, float]:
    """The measurements of a setting."""
    entry: dict[str, float] = next(entry for entry in report["settings"] if entry["name"] == name)
    return entry


def without(report: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in report.items() if name not in names}


@click.command(help=__doc__)
@click.option("--index", type=click.Path(path_type=Path, exists=True, dir_okay=False), help="Index to search.")
@click.option("--nodes", default=6e7, show_default=True, help="Without --index: nodes of a synthetic index to search.")
@click.option(
    "--held-out", type=click.Path(path_type=Path, exists=True), help="Shard of text that is not in the index."
)
@click.option("--rounds", default=4096, show_default=True, help="Different rounds to search.")
@click.option(
    "--passes", default=3, show_default=True, help="How often each is measured, besides a first time to warm up."
)
@click.option("--backing", default="populate", show_default=True, type=click.Choice(["mmap", "populate", "copy"]))
@click.option("--huge-pages/--no-huge-pages", default=True, help="Measure a private copy on huge pages too.")
@click.option("--sweep/--no-sweep", default=True, help="Measure other depths, widths, beams and budgets too.")
@click.option("--baseline-nodes", default=6e7, show_default=True, help="Nodes for the hash-map trie; 0 leaves it out.")
@click.option("--folder", type=click.Path(path_type=Path, exists=True), help="Where indexes are made for the run.")
def main(
    index: Path | None,
    nodes: float,
    held_out: Path | None,
    rounds: int,
    passes: int,
    backing: str,
    huge_pages: bool,
    sweep: bool,
    baseline_nodes: float,
    folder: Path | None,
) -> None:
    with tempfile.TemporaryDirectory(dir=folder) as made:
        if index is None:
            index = Path(made) / "search.ngx"
            make_index(index, nodes=int(nodes))
        depth = max(DEPTH, *SWEEPS["depth"]) if sweep else DEPTH
        request = {
            "index": str(index),
            "backing": backing,
            "texts": held_out_texts(held_out, rounds, order_of(index), depth) if held_out else [],
            "rounds": rounds,
            "seed": SEED,
            "passes": passes,
            "settings": settings(sweep),
            "baseline_rounds": 0,
        }
        report = run_program("bench_search", request)
        copied = (
            run_program("bench_search", request | {"backing": "copy", "settings": settings(False)})
            if huge_pages
            else None
        )
        baseline = None
        if baseline_nodes:
            small = Path(made) / "baseline.ngx"
            make_index(small, nodes=int(baseline_nodes))
            wanted = {"index": str(small), "texts": [], "rounds": 1000, "passes": 1, "baseline_rounds": 1000}
            baseline = run_program("bench_search", request | wanted | {"settings": settings(False)})
    result = {
        "p50_us": time_of(report, "survival")["p50_us"],
        "p99_us": time_of(report, "survival")["p99_us"],
        "reference_p50_us": time_of(report, "reference")["p50_us"],
        "reference_p99_us": time_of(report, "reference")["p99_us"],
        "backing": backing,
        **without(report, "baseline"),
    }
    if copied:
        result["huge_pages"] = {"settings": copied["settings"], "memory": copied["memory"]}
    if baseline:
        result["baseline_ratio"] = baseline["baseline"]["ratio"]
        result["baseline"] = baseline["baseline"] | {"nodes": baseline["nodes"]}
    print(json.dumps(result))


def order_of(index: Path) -> int:
    """The order of an index."""
    import ngram_index

    return int(ngram_index.Index.open(index).order)


if __name__ == "__main__":
    main()
