"""Synthetic text repeats itself as text does."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from bench.corpus_shape import count, read_tokens, shape
from bench.synthetic_text import VOCAB_SIZE, write_shards


def test_shards_hold_what_was_asked_for_and_are_the_same_each_time(tmp_path: Path) -> None:
    first, again = write_shards(tmp_path / "a", 30_000), write_shards(tmp_path / "b", 30_000)
    tokens, starts = read_tokens(first, 10**9)
    assert len(tokens) == 30_000
    assert int(tokens.max()) < VOCAB_SIZE
    assert np.count_nonzero(starts) == 15
    assert np.array_equal(tokens, read_tokens(again, 10**9)[0])
    assert not np.array_equal(tokens, read_tokens(write_shards(tmp_path / "c", 30_000, seed=2), 10**9)[0])


def test_some_trigrams_come_often_and_most_come_once(tmp_path: Path) -> None:
    found = shape(count(*read_tokens(write_shards(tmp_path, 200_000), 10**9)))
    assert 0.4 < found.trigrams_once_share < 0.95
    assert found.trigrams < 0.8 * found.tokens
