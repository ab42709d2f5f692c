"""The shape of a corpus, against counting by hand."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from bench.corpus_shape import count, histogram, read_tokens, shape
from bench.shards import read_shard, write_shard


def documents() -> list[np.ndarray]:
    random = np.random.default_rng(3)
    return [random.integers(0, 9, length).astype(np.uint16) for length in (40, 1, 2, 3, 70)]


@pytest.fixture
def shard(tmp_path: Path) -> Path:
    path = tmp_path / "shard.npz"
    assert write_shard(path, documents()) == 116
    return path


def grams(length: int) -> Counter[tuple[int, ...]]:
    found: Counter[tuple[int, ...]] = Counter()
    for document in documents():
        ids = document.tolist()
        found.update(tuple(ids[at : at + length]) for at in range(len(ids) - length + 1))
    return found


def test_counts_are_those_of_windows_inside_documents(shard: Path) -> None:
    counts = count(*read_tokens([shard], 1_000))
    bigrams, trigrams = grams(2), grams(3)
    assert counts.tokens == 116
    assert dict(zip(counts.bigrams.tolist(), counts.bigram_counts.tolist(), strict=True)) == {
        a << 16 | b: times for (a, b), times in bigrams.items()
    }
    assert sorted(counts.trigram_counts.tolist()) == sorted(trigrams.values())
    children = Counter(gram[:2] for gram in trigrams)
    expected = [children[key >> 16, key & 0xFFFF] for key in counts.bigrams.tolist()]
    assert counts.children.tolist() == expected


def test_the_summary_follows_from_the_counts(shard: Path) -> None:
    found = shape(count(*read_tokens([shard], 1_000)))
    bigrams, trigrams = grams(2), grams(3)
    children = Counter(gram[:2] for gram in trigrams)
    assert found.nodes == len(grams(1)) + len(bigrams) + len(trigrams)
    assert found.children_per_context == pytest.approx(len(trigrams) / len(children))
    assert found.one_child_share == pytest.approx(sum(n == 1 for n in children.values()) / len(children))
    assert found.trigrams_once_share == pytest.approx(sum(n == 1 for n in trigrams.values()) / len(trigrams))
    assert sum(found.children_histogram) == len(children)


def test_octaves_start_at_powers_of_two() -> None:
    assert histogram(np.array([1, 1, 2, 3, 4, 7, 8])) == [2, 2, 2, 1]


def test_reading_stops_at_the_wanted_number_of_tokens(shard: Path) -> None:
    tokens, starts = read_tokens([shard, shard], 42)
    assert tokens.tolist() == np.concatenate(documents())[:42].tolist()
    assert np.flatnonzero(starts).tolist() == [0, 40, 41]


def test_a_file_that_is_no_shard_is_named(tmp_path: Path) -> None:
    path = tmp_path / "bad.npz"
    path.write_text("no")
    with pytest.raises(Exception, match=r"bad\.npz is not a token shard"):
        read_shard(path)
