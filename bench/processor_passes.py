"""Passes on a processor with compiled loops against plain torch: `python -m bench.processor_passes`.

Same weights, caches and rows in one process, the two in turns: single tokens of one and of many sessions, trees, chunks
of prompts, behind short and long contexts. The last line is a JSON object with `points`: `what`, `rows`, `plain_ms` and
`compiled_ms` (medians) and `ratio`, the median over the turns.
"""

from __future__ import annotations

import json
import statistics
import time
from typing import Any

import click
import numpy as np
import torch
from tqdm import tqdm

from dartspec.services.common.types import Tree
from dartspec.services.draft.convert_gguf import PACKAGED_MODEL, resolve_model
from dartspec.services.verifier.attention import Segment, causal_rows
from dartspec.services.verifier.compiled_passes import compiled
from dartspec.services.verifier.kv_cache import KVCache
from dartspec.services.verifier.loader import load_target
from dartspec.services.verifier.target import Target
from dartspec.services.verifier.tree import depths, visible_rows

SESSIONS = 16
CONTEXTS = (100, 300, 1500)
TREE_NODES, SMALL_TREE_NODES = 59, 3
CHUNKS = (128, 512)


def sessions(target: Target, count: int, context: int) -> list[KVCache]:
    """Caches that hold so many positions of noise."""
    caches = [target.new_cache(context + max(CHUNKS)) for _ in range(count)]
    for cache in caches:
        cache.data[:, :, :, :context] = torch.randn(cache.data[:, :, :, :context].shape)
        cache.length = context
    return caches


def chunk(cache: KVCache, rows: int) -> Segment:
    """Consecutive tokens."""
    return Segment(cache, [7] * rows, np.arange(rows, dtype=np.int32), causal_rows(rows))


def tree(cache: KVCache, nodes: int) -> Segment:
    """A root and a binary tree."""
    parents = np.arange(nodes, dtype=np.int32) // 2
    made = Tree(np.arange(nodes, dtype=np.int32), parents, np.zeros(nodes, np.float32), np.zeros(nodes, np.uint16))
    return Segment(cache, [7] * (nodes + 1), depths(made), visible_rows(made))


def cases(caches: list[KVCache], context: int) -> dict[str, list[Segment]]:
    """Passes behind one context."""
    return {
        f"1 token behind {context}": [chunk(caches[0], 1)],
        f"{SESSIONS} sessions behind {context}": [chunk(cache, 1) for cache in caches],
        f"a tree behind {context}": [tree(caches[0], TREE_NODES)],
        f"{SESSIONS} small trees behind {context}": [tree(cache, SMALL_TREE_NODES) for cache in caches],
        **{f"{rows} tokens of a prompt behind {context}": [chunk(caches[0], rows)] for rows in CHUNKS},
    }


def milliseconds(forward: Any, segments: list[Segment]) -> float:
    """Of one pass."""
    begin = time.perf_counter()
    forward(segments)
    return 1e3 * (time.perf_counter() - begin)


@click.command(help=__doc__)
@click.option("--model", default=PACKAGED_MODEL, show_default=True)
@click.option("--dtype", default="bfloat16", show_default=True, type=click.Choice(["float32", "bfloat16"]))
@click.option("--turns", default=15, show_default=True, help="Measurements of each side.")
def main(model: str, dtype: str, turns: int) -> None:
    """Measure and print."""
    directory = resolve_model(model)
    target = load_target(directory, model, getattr(torch, dtype), torch.device("cpu")).target
    passes = compiled(target)
    if passes is None:
        raise click.ClickException("there are no compiled loops for this model on this machine")
    points = []
    for context in tqdm(CONTEXTS, unit="context", disable=None):
        caches = sessions(target, SESSIONS, context)
        for what, segments in cases(caches, context).items():
            if passes.run(segments) is None:
                continue  # left to plain torch
            plain, ours = [], []
            for _ in range(turns):
                plain.append(milliseconds(target.eager, segments))
                ours.append(milliseconds(passes.run, segments))
            points.append(
                {
                    "what": what,
                    "rows": sum(segment.rows for segment in segments),
                    "plain_ms": round(statistics.median(plain), 2),
                    "compiled_ms": round(statistics.median(ours), 2),
                    "ratio": round(statistics.median(a / b for a, b in zip(ours, plain, strict=True)), 3),
                }
            )
        for cache in caches:
            cache.release()
    click.echo(json.dumps({"dtype": dtype, "threads": torch.get_num_threads(), "points": points}))


if __name__ == "__main__":
    main()
