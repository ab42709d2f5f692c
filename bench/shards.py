"""Token shards: `tokens` uint16 or uint32 [T] and `offsets` int64 [documents + 1] in an .npz file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray


def read_shard(path: Path) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Tokens and offsets of a shard. Raises ClickException naming the file."""
    try:
        with np.load(path, allow_pickle=False) as arrays:
            return arrays["tokens"], arrays["offsets"]
    except (KeyError, ValueError, OSError) as error:
        raise click.ClickException(
            f"{path} is not a token shard, `python -m bench.corpus` makes them: {error}"
        ) from error


def write_shard(path: Path, documents: list[NDArray[Any]]) -> int:
    """Write documents as one shard; returns the number of tokens."""
    offsets = np.zeros(len(documents) + 1, np.int64)
    np.cumsum([len(tokens) for tokens in documents], out=offsets[1:])
    temporary = path.with_name(path.stem + ".tmp.npz")
    np.savez(temporary, tokens=np.concatenate(documents), offsets=offsets)
    temporary.replace(path)
    return int(offsets[-1])
