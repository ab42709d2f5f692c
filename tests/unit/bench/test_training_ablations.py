"""The arithmetic of the ablations: intervals, pairs of the same seed, texts from a corpus."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bench.training_ablations import MEASURES, corpus_texts, interval, summary


def test_an_interval_is_that_of_students_t() -> None:
    # By hand: mean 2, standard deviation 1, and 4.303 / sqrt(3) of it.
    assert interval([1.0, 2.0, 3.0]) == {"mean": 2.0, "half": 2.4843}
    assert interval([1.5]) == {"mean": 1.5, "half": None}


def run(variant: str, seed: int, value: float) -> dict[str, object]:
    return {"variant": variant, "seed": seed, **dict.fromkeys(MEASURES, value)}


def test_differences_are_between_runs_of_one_seed() -> None:
    runs = [run("recipe", 0, 2.0), run("recipe", 1, 3.0), run("gamma 1.0", 1, 2.5), run("gamma 1.0", 0, 1.5)]
    recipe, other = summary(runs)
    assert recipe["seeds"] == other["seeds"] == [0, 1]
    assert recipe["chain"]["mean"] == 2.5
    assert "chain_difference" not in recipe
    # Seeds differ by 1, the variant from the recipe by 0.5 with each: the pairs have no spread.
    assert other["chain"] == pytest.approx({"mean": 2.0, "half": 6.353}, abs=1e-3)
    assert other["chain_difference"] == {"mean": -0.5, "half": 0.0}


def test_a_variant_without_a_recipe_beside_it_has_no_difference() -> None:
    (row,) = summary([run("no shift", 0, 2.0)])
    assert "chain_difference" not in row


def test_documents_of_a_corpus_stand_behind_the_header(tmp_path: Path) -> None:
    path = tmp_path / "corpus.npz"
    np.savez(path, tokens=np.arange(10, 19, dtype=np.uint16), offsets=np.array([0, 2, 6, 9]))
    found = corpus_texts(path, [1, 2], least=3, max_length=5)
    assert [text.tokens for text in found] == [(1, 2, 12, 13, 14), (1, 2, 16, 17, 18)]
    assert {text.prompt_length for text in found} == {2}
