"""Token shards of synthetic text: `python -m bench.synthetic_text --tokens N --output FOLDER`.

Documents are pieces of phrases drawn from a fixed store, common ones more often, with a random token here and there,
so that n-grams repeat as they do in text: builders see many windows more than once and many only once. For measuring
builders at sizes at which no real text is at hand. The last line is a JSON object.
"""

from __future__ import annotations

import json
from pathlib import Path

import click
import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

VOCAB_SIZE = 49_152
SHARD_TOKENS = 20_000_000
DOCUMENT_TOKENS = 2_000
STORE_TOKENS = 200_000_000
# A piece of the store has so many tokens on average; the r-th place of the store is used like r to this power.
PIECE_TOKENS = 12
PLACE_EXPONENT = 4.0
RANDOM_SHARE = 0.02


def common_tokens(random: np.random.Generator, count: int) -> NDArray[np.uint16]:
    """Tokens of which the r-th has a probability of about 1/r."""
    return (VOCAB_SIZE ** random.random(count, np.float32)).astype(np.uint16) - 1


def shard(random: np.random.Generator, store: NDArray[np.uint16], count: int) -> NDArray[np.uint16]:
    """So many tokens of text."""
    pieces = count // PIECE_TOKENS * 2 + 16
    lengths = random.geometric(1 / PIECE_TOKENS, pieces)
    ends = np.cumsum(lengths)
    pieces = int(np.searchsorted(ends, count)) + 1
    lengths, ends = lengths[:pieces], ends[:pieces]
    places = (random.random(pieces) ** PLACE_EXPONENT * (len(store) - 10_000)).astype(np.int64)
    where = np.repeat(places - (ends - lengths), lengths)[:count] + np.arange(count)
    tokens = store[where]
    changed = random.random(count, np.float32) < RANDOM_SHARE
    tokens[changed] = common_tokens(random, int(changed.sum()))
    return tokens


def write_shards(folder: Path, tokens: int, seed: int = 1) -> list[Path]:
    """Write shards with so many tokens together."""
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(seed)
    store = common_tokens(random, min(STORE_TOKENS, max(tokens, 100_000)))
    paths = []
    with tqdm(total=tokens, unit="token", unit_scale=True) as bar:
        for number, start in enumerate(range(0, tokens, SHARD_TOKENS)):
            count = min(SHARD_TOKENS, tokens - start)
            offsets = np.append(np.arange(0, count, DOCUMENT_TOKENS, dtype=np.int64), count)
            paths.append(folder / f"shard-{number:04}.npz")
            np.savez(paths[-1], tokens=shard(random, store, count), offsets=offsets)
            bar.update(count)
    return paths


@click.command(help=__doc__)
@click.option("--tokens", default=1e8, show_default=True, help="Tokens of all shards together.")
@click.option("--output", "-o", required=True, type=click.Path(path_type=Path), help="Folder for the shards.")
@click.option("--seed", default=1, show_default=True, help="Equal seeds give equal shards.")
def main(tokens: float, output: Path, seed: int) -> None:
    paths = write_shards(output, int(tokens), seed)
    print(json.dumps({"tokens": int(tokens), "shards": len(paths), "vocab_size": VOCAB_SIZE}))


if __name__ == "__main__":
    main()
