"""The shape of a corpus's n-grams at growing sizes: `python -m bench.corpus_shape SHARDS... [--sizes 5e6,2e7]`.

What decides the size and the speed of an index is how many bigrams and trigrams there are, how many tokens follow a
context, and how often an n-gram was seen. Each size takes that many tokens from the shards, in their order, which
`bench.corpus` made random samples of documents. The last line is a JSON object with one entry a size.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from bench.shards import read_shard

TOKEN_BITS = 16
BUCKETS = 32


@dataclass(frozen=True)
class Counts:
    """n-grams of a corpus, all arrays in ascending order of the n-grams."""

    tokens: int
    unigrams: NDArray[np.int64]  # [V] how often each token was seen
    bigrams: NDArray[np.uint64]  # [B] first << 16 | second
    bigram_counts: NDArray[np.int64]  # [B]
    trigram_counts: NDArray[np.int64]  # [T]
    children: NDArray[np.int64]  # [B] different tokens that followed each bigram


@dataclass(frozen=True)
class Shape:
    """What an index of a corpus looks like; histograms are by powers of two."""

    tokens: int
    unigrams: int
    bigrams: int
    trigrams: int
    children_per_context: float
    one_child_share: float  # of the bigrams that anything followed
    trigrams_once_share: float
    bigrams_once_share: float
    children_histogram: list[int]  # contexts with 1, 2..3, 4..7, ... children
    trigram_count_histogram: list[int]
    bigram_count_histogram: list[int]
    successor_histogram: list[int]  # tokens with 1, 2..3, 4..7, ... different successors
    children_by_count: list[float]  # mean children of contexts seen once, 2..3, 4..7, ... times
    one_child_by_count: list[float]  # share of those with one child

    @property
    def nodes(self) -> int:
        return self.unigrams + self.bigrams + self.trigrams


def read_tokens(shards: list[Path], limit: int) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """The first `limit` tokens of shards, and whether each starts a document."""
    pieces: list[NDArray[Any]] = []
    starts: list[NDArray[np.bool_]] = []
    held = 0
    for shard in shards:
        tokens, offsets = read_shard(shard)
        first = np.zeros(len(tokens) + 1, np.bool_)
        first[offsets] = True
        pieces.append(tokens[: limit - held])
        starts.append(first[: len(pieces[-1])])
        held += len(pieces[-1])
        if held >= limit:
            break
    return np.concatenate(pieces), np.concatenate(starts)


def count(tokens: NDArray[Any], starts: NDArray[np.bool_]) -> Counts:
    """Count documents of token ids below 2^16."""
    if len(tokens) and int(tokens.max()) >= 1 << TOKEN_BITS:
        raise click.BadParameter(f"token ids must be below {1 << TOKEN_BITS}, got {int(tokens.max())}")
    wide = tokens.astype(np.uint64)
    inside = ~starts[1:]
    pairs = (wide[:-1] << np.uint64(TOKEN_BITS)) | wide[1:]
    bigrams, bigram_counts = unique(pairs[inside])
    triples = (pairs[:-1] << np.uint64(TOKEN_BITS)) | wide[2:]
    trigrams, trigram_counts = unique(triples[inside[1:] & inside[:-1]])
    context = np.searchsorted(bigrams, trigrams >> np.uint64(TOKEN_BITS))
    children = np.bincount(context, minlength=len(bigrams))
    return Counts(len(tokens), np.bincount(tokens), bigrams, bigram_counts, trigram_counts, children.astype(np.int64))


def unique(keys: NDArray[np.uint64]) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Sorted distinct keys and their counts; sorts `keys` in place."""
    keys.sort()
    first = np.ones(len(keys), bool)
    np.not_equal(keys[1:], keys[:-1], out=first[1:])
    at = np.flatnonzero(first)
    return keys[at], np.diff(np.append(at, len(keys)))


def shape(counts: Counts) -> Shape:
    """Summarise counts."""
    children = counts.children[counts.children > 0]
    seen = counts.bigram_counts[counts.children > 0]
    successors = np.bincount((counts.bigrams >> np.uint64(TOKEN_BITS)).astype(np.int64))
    bucket = octave(seen)
    contexts = np.maximum(np.bincount(bucket, minlength=BUCKETS), 1)
    return Shape(
        tokens=counts.tokens,
        unigrams=int(np.count_nonzero(counts.unigrams)),
        bigrams=len(counts.bigrams),
        trigrams=len(counts.trigram_counts),
        children_per_context=float(children.mean()),
        one_child_share=float((children == 1).mean()),
        trigrams_once_share=float((counts.trigram_counts == 1).mean()),
        bigrams_once_share=float((counts.bigram_counts == 1).mean()),
        children_histogram=histogram(children),
        trigram_count_histogram=histogram(counts.trigram_counts),
        bigram_count_histogram=histogram(counts.bigram_counts),
        successor_histogram=histogram(successors[successors > 0]),
        children_by_count=rounded(np.bincount(bucket, children, BUCKETS) / contexts),
        one_child_by_count=rounded(np.bincount(bucket, children == 1, BUCKETS) / contexts),
    )


def octave(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """floor(log2(value)) of positive values."""
    return (np.frexp(values.astype(np.float64))[1] - 1).astype(np.int64)


def histogram(values: NDArray[np.int64]) -> list[int]:
    """How many values are 1, 2..3, 4..7 and so on."""
    return np.trim_zeros(np.bincount(octave(values), minlength=1), "b").tolist()


def rounded(values: NDArray[np.float64]) -> list[float]:
    return [round(value, 4) for value in np.trim_zeros(values, "b").tolist()]


@click.command(help=__doc__)
@click.argument("shards", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--sizes", default="5e6,2e7,8e7,1e12", show_default=True, help="Numbers of tokens, separated by commas.")
def main(shards: tuple[Path, ...], sizes: str) -> None:
    shapes: list[Shape] = []
    for size in tqdm([int(float(size)) for size in sizes.split(",")], unit="size"):
        shapes.append(shape(count(*read_tokens(list(shards), size))))
        if shapes[-1].tokens < size:
            break
    print(json.dumps({"sizes": [asdict(entry) | {"nodes": entry.nodes} for entry in shapes]}))


if __name__ == "__main__":
    main()
