"""Adding up indexes of one tokenizer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ngram_index

from dartspec.services.common.errors import InvalidArgument
from dartspec.services.ngram.build import DEFAULT_MEMORY, MADE_BY, Built, buffer_bytes
from dartspec.services.ngram.errors import index_errors
from dartspec.services.ngram.progress import stages
from dartspec.services.ngram.pruning import Pruning


def merge_indexes(
    indexes: Sequence[Path],
    output: Path,
    *,
    weights: Sequence[float] = (),
    memory: int = DEFAULT_MEMORY,
    pruning: Pruning | None = None,
    quiet: bool = False,
) -> Built:
    """Write the sum of ``indexes``, each times its weight (1 if none are given), rounded to nearest, at least 1.

    Raises InvalidArgument when the indexes are not of one tokenizer and order, or a weight is not positive.
    """
    if weights and len(weights) != len(indexes):
        message = f"must be given once for each of {len(indexes)} indexes or not at all, got {len(weights)}"
        raise InvalidArgument("--weight", message)
    pruning = pruning or Pruning()
    sources = list(zip(indexes, weights or [1.0] * len(indexes), strict=True))
    with index_errors():
        merged = [_describe(path, weight) for path, weight in sources]
    manifest = json.dumps({"made_by": MADE_BY, "merged": merged}, sort_keys=True)
    with stages(quiet) as progress, index_errors():
        made = ngram_index.merge(
            sources,
            output,
            manifest,
            progress,
            buffer_bytes(memory),
            list(pruning.min_counts),
            pruning.renormalise,
            pruning.target_bytes,
        )
    return Built(*made)


def _describe(path: Path, weight: float) -> dict[str, Any]:
    """What the new manifest says about an index."""
    manifest = ngram_index.Index.open(path).manifest
    try:
        value = json.loads(manifest)
    except ValueError:
        value = manifest  # another program's
    return {"name": path.name, "weight": weight, "manifest": value}
