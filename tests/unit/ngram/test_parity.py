"""Scores and trees equal the public implementation's, from an index built here and from its own file."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ngram_index
import pytest

from . import naive
from .support import (
    FINGERPRINT,
    FIXTURES,
    build,
    fixture_cases,
    fixture_documents,
    needs_fixtures,
    paths,
    search,
)

pytestmark = needs_fixtures
VOCAB = 400
SWAP_TOLERANCE = 1e-5
CASES = [("order3", 3, False), ("order4", 4, False), ("order5", 5, False), ("order3_skip_first_level", 3, True)]


@pytest.fixture(scope="module", params=["built", "imported"])
def indexes(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[int, ngram_index.Index]:
    folder = tmp_path_factory.mktemp(request.param)
    result = {}
    for order in (3, 4, 5):
        path = folder / f"order{order}.ngx"
        if request.param == "built":
            result[order] = build(path, fixture_documents(), order, VOCAB)
        else:
            ngram_index.import_trie(FIXTURES / f"order{order}.trie", path, VOCAB, FINGERPRINT)
            result[order] = ngram_index.Index.open(path)
    return result


def reference_paths(case: dict[str, Any]) -> set[tuple[int, ...]]:
    def by_depth(row: str) -> Iterator[int]:
        return iter(sorted((j for j, bit in enumerate(row) if bit == "1"), key=lambda j: case["depth"][j]))

    tokens = case["tree_tokens"]
    return {tuple(tokens[j] for j in by_depth(row))[1:] for row in case["mask"]} - {()}


@pytest.mark.parametrize(("name", "order", "skip"), CASES)
def test_scores(indexes: dict[int, ngram_index.Index], name: str, order: int, skip: bool) -> None:
    cases = fixture_cases(f"{name}.jsonl", "score")
    assert len(cases) == 80
    for case in cases:
        probabilities, matched = indexes[order].score(case["context"], case["candidates"])
        assert list(matched) == case["matched"]
        assert probabilities == pytest.approx(case["probability"], abs=1e-7)


@pytest.mark.parametrize(("name", "order", "skip"), CASES)
def test_trees(indexes: dict[int, ngram_index.Index], name: str, order: int, skip: bool) -> None:
    cases = fixture_cases(f"{name}.jsonl", "search")
    assert len(cases) == 20
    twin = naive.NaiveIndex.build(fixture_documents(), order, VOCAB)
    for case in cases:
        offsets = [
            (tokens, [math.log(p) for p in probabilities])
            for tokens, probabilities in zip(case["tokens"], case["probabilities"], strict=True)
        ]
        params = {
            "beam_width": case["beam_width"],
            "node_budget": case["node_budget"],
            "stop_token_ids": [case["eos"]],
            "skip_ngram_at_first_level": skip,
        }
        found = set(paths(search(indexes[order], case["prompt"], offsets, mode="reference", **params)))
        expected = reference_paths(case)
        assert len(found) == len(expected)
        scores = naive.reference(twin, case["prompt"], offsets, **params).scores
        ours, theirs = (sorted(scores[path] for path in side) for side in (found - expected, expected - found))
        assert ours == pytest.approx(theirs, abs=SWAP_TOLERANCE)


@pytest.mark.parametrize("order", [3, 4, 5])
def test_import_and_build_give_the_same_counts(tmp_path: Path, order: int) -> None:
    build(tmp_path / "built.ngx", fixture_documents(), order, VOCAB)
    ngram_index.import_trie(FIXTURES / f"order{order}.trie", tmp_path / "imported.ngx", VOCAB, FINGERPRINT)
    assert (tmp_path / "built.ngx").read_bytes() == (tmp_path / "imported.ngx").read_bytes()
