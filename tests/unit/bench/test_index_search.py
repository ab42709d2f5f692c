"""What the search benchmark asks for."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from bench.index_search import held_out_texts, settings
from bench.shards import write_shard


def test_held_out_texts_never_cross_a_document(tmp_path: Path) -> None:
    path = tmp_path / "held-out.npz"
    write_shard(path, [np.arange(start, start + 15, dtype=np.uint16) for start in range(0, 1000, 100)])
    texts = held_out_texts(path, 40, 3, 8)
    assert len(texts) == 40
    for text in texts:
        assert text == list(range(text[0], text[0] + 10))
        assert text[0] // 100 == text[-1] // 100
    assert len({text[0] for text in texts}) == 40


def test_settings_have_different_names_and_the_usual_size_first() -> None:
    found = settings(sweep=True)
    assert len({each["name"] for each in found}) == len(found)
    usual = {"mode": "survival", "depth": 8, "width": 25, "beam": 20, "budget": 59, "hot": False, "transitions": False}
    assert found[0] == {"name": "survival", **usual}
    assert {each["budget"] for each in found} == {8, 16, 32, 59, 128}
