"""What a synthetic index needs to know of real text: `python -m bench.synthetic_fit SHARDS... --output FILE`.

Measured from token shards and kept as small tables, so that an index of the same shape, or of a corpus many times as
large, can be made without the text. `bench.synthetic` says how they are used. The last line is a JSON object.
"""

from __future__ import annotations

import json
import tempfile
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from bench.corpus_shape import TOKEN_BITS, Counts, count, octave, read_tokens, shape
from bench.synthetic import index_shape, make_index

QUANTILES = 21
RANKS = 128
# Rows are by the count itself below this, and by its octave from there on.
EXACT = 16
# An octave with fewer members says nothing.
LEAST_TOKENS = 10
LEAST_CONTEXTS = 400
# The growth of the number of a token's successors is measured between the whole corpus and this share of it.
GROWTH_SHARE = 4
# Shares of counts are corrected so often by what an index made with them has; larger counts are too few to say.
CORRECTIONS = 3
CORRECTED_OCTAVES = 12


def successors(counts: Counts) -> NDArray[np.int64]:
    """Different tokens that followed each token, [V]."""
    first = (counts.bigrams >> np.uint64(TOKEN_BITS)).astype(np.int64)
    return np.bincount(first, minlength=len(counts.unigrams))


def rows(seen: NDArray[np.int64], followed: NDArray[np.int64], least: int) -> list[dict[str, Any]]:
    """Quantiles of log2 of how many tokens followed, given how often a context was seen, from `least` contexts each."""
    key = np.where(seen < EXACT, seen, EXACT + octave(np.maximum(seen, 1)))
    order = np.argsort(key, kind="stable")
    bounds = np.flatnonzero(np.diff(key[order], prepend=-1, append=-1))
    result = []
    for start, end in pairwise(bounds):
        members = order[start:end]
        if len(members) >= least and seen[members[0]] > 1:
            at = float(np.log2(seen[members]).mean())
            values = np.quantile(np.log2(followed[members]), (np.arange(QUANTILES) + 0.5) / QUANTILES)
            # The mean of the quantiles is to give the mean number, whatever the tails do.
            shift = np.log2(followed[members].mean()) - np.log2(np.exp2(values).mean())
            result.append({"log2_seen": round(at, 4), "log2_followed": np.round(values + shift, 4).tolist()})
    return result


def count_octaves(values: NDArray[np.int64]) -> list[float]:
    """Shares of counts that are 1, 2..3, 4..7 and so on."""
    shares = np.bincount(octave(values)) / len(values)
    return [float(f"{share:.4g}") for share in shares]


def growth(part: Counts, whole: Counts) -> list[list[float]]:
    """Pairs of log2 of a token's number of successors and the exponent by which it grows with the corpus."""
    before, after = successors(part), successors(whole)[: len(successors(part))]
    grown = np.log2(whole.unigrams[: len(part.unigrams)].sum() / part.unigrams.sum())
    seen = before > 1
    middle = octave(before[seen])
    pairs = []
    for bucket in range(1, int(middle.max()) + 1):
        members = middle == bucket
        if members.sum() >= 5:
            now, then = after[seen][members].mean(), before[seen][members].mean()
            pairs.append([round(float(np.log2(now * then) / 2), 3), round(float(np.log2(now / then) / grown), 3)])
    return pairs


def drift(part: Counts, whole: Counts) -> list[list[float]]:
    """Pairs of log2 of how often a context was seen and the exponent by which the number of its children beyond the
    first changes with the corpus, when contexts seen equally often are compared."""
    grown = np.log2(whole.tokens / part.tokens)
    means = [excess(counts) for counts in (part, whole)]
    pairs = []
    for octave_ in range(1, min(len(means[0]), len(means[1]))):
        if means[0][octave_] and means[1][octave_]:
            exponent = float(np.log2(means[1][octave_] / means[0][octave_]) / grown)
            pairs.append([octave_ + 0.45, round(exponent, 4)])
    return pairs


def excess(counts: Counts) -> list[float]:
    """Mean number of children beyond the first of contexts seen 1, 2..3, 4..7, ... times; 0 where there are too few."""
    contexts = counts.children > 0
    key = octave(counts.bigram_counts[contexts])
    members = np.bincount(key)
    sums = np.bincount(key, counts.children[contexts] - 1)
    return [
        float(total / number) if number >= LEAST_CONTEXTS else 0.0 for total, number in zip(sums, members, strict=True)
    ]


def fit(tokens: NDArray[Any], starts: NDArray[np.bool_]) -> dict[str, Any]:
    """All tables of a corpus."""
    whole = count(tokens, starts)
    part_of = len(tokens) // GROWTH_SHARE
    part = count(tokens[:part_of], starts[:part_of])
    seen = np.sort(whole.unigrams[whole.unigrams > 0])[::-1]
    ranks = np.unique(np.geomspace(1, len(seen), RANKS).astype(int))
    followed = successors(whole)
    known = followed > 0
    contexts = whole.children > 0
    measured = shape(whole)
    return {
        "measured": asdict(measured) | {"nodes": measured.nodes},
        "token_counts": [[int(rank), int(seen[rank - 1])] for rank in ranks],
        "successors": rows(whole.unigrams[known], followed[known], LEAST_TOKENS),
        "successor_growth": growth(part, whole),
        "bigram_count_octaves": count_octaves(whole.bigram_counts),
        "children": rows(whole.bigram_counts[contexts], whole.children[contexts], LEAST_CONTEXTS),
        "children_drift": drift(part, whole),
        "trigram_count_octaves": count_octaves(whole.trigram_counts),
    }


def correct(tables: dict[str, Any]) -> None:
    """Change the shares of counts, in place, so that an index made with them has those of the measured corpus.

    Every context tilts the shares to its own mean, so the shares of all contexts together come out differently.
    """
    with tempfile.TemporaryDirectory() as folder:
        index = Path(folder) / "trial.ngx"
        make_index(index, nodes=0, shape=tables)
        made = index_shape(index)
    for name in ("bigram_count", "trigram_count"):
        shares = tables[name + "_octaves"]
        wanted, found = tables["measured"][name + "_histogram"], made[name + "_histogram"]
        for octave_, (want, find) in enumerate(zip(wanted[:CORRECTED_OCTAVES], found, strict=False)):
            shares[octave_] = float(f"{shares[octave_] * (want / sum(wanted)) / (find / sum(found)):.4g}")


@click.command(help=__doc__)
@click.argument("shards", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--output", "-o", required=True, type=click.Path(path_type=Path), help="The tables, JSON.")
@click.option("--max-tokens", default=1_000_000_000, show_default=True, help="Use so many tokens at most.")
def main(shards: tuple[Path, ...], output: Path, max_tokens: int) -> None:
    with tqdm(total=1 + CORRECTIONS, desc="fit") as bar:
        tables = fit(*read_tokens(list(shards), max_tokens))
        bar.update()
        for _ in range(CORRECTIONS):
            correct(tables)
            bar.update()
    temporary = output.with_name(output.name + ".tmp")
    temporary.write_text(json.dumps(tables) + "\n")
    temporary.replace(output)
    measured = tables["measured"]
    print(json.dumps({"tokens": measured["tokens"], "nodes": measured["nodes"], "bytes": output.stat().st_size}))


if __name__ == "__main__":
    main()
