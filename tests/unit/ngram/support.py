"""Building small indexes and reading trees in tests."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import ngram_index
import numpy as np
import pytest

FIXTURES = Path(__file__).resolve().parents[4] / "shared" / "fixtures" / "ngram"
FINGERPRINT = "00112233445566778899aabbccddeeff"

# gRPC's default for a Unix socket, its escaped path, is not an authority by RFC 3986; the server resets such streams.
AUTHORITY = [("grpc.default_authority", "localhost")]

needs_fixtures = pytest.mark.skipif(not FIXTURES.is_dir(), reason="../shared/fixtures/ngram is missing")


def build(path: Path, documents: Sequence[Sequence[int]], order: int, vocab_size: int) -> ngram_index.Index:
    """An index of the documents at ``path``."""
    builder = ngram_index.Builder(order, vocab_size)
    tokens = np.array([token for document in documents for token in document], np.uint32)
    offsets = np.cumsum([0, *map(len, documents)]).astype(np.int64)
    builder.add(tokens, offsets)
    builder.finish(path, FINGERPRINT)
    return ngram_index.Index.open(path)


def fixture_documents() -> list[list[int]]:
    """The documents that the reference's tries were built from."""
    return [[int(word) for word in line.split()] for line in (FIXTURES / "docs.txt").read_text().splitlines()]


def fixture_cases(name: str, kind: str) -> list[dict[str, Any]]:
    """The cases of one kind in a file of reference outputs."""
    cases = [json.loads(line) for line in (FIXTURES / name).read_text().splitlines()]
    return [case for case in cases if case["kind"] == kind]


def search(
    index: ngram_index.Index,
    context: Sequence[int],
    offsets: Any,
    transition: Callable[[int, int], float] | None = None,
    **params: Any,
) -> ngram_index.Tree:
    """Search one tree from a list of (tokens, log-probabilities) by offset, and the score of a token after another."""
    tokens = np.array([token for tokens, _ in offsets for token in tokens], np.int32)
    logprobs = np.array([value for _, logprobs in offsets for value in logprobs], np.float32)
    scores = None
    if transition is not None:
        neighbours = itertools.pairwise(tokens for tokens, _ in offsets)
        scores = np.array([transition(u, v) for before, here in neighbours for u in before for v in here], np.float32)
    return index.search(list(context), [len(tokens) for tokens, _ in offsets], tokens, logprobs, scores, **params)


def unpack(tree: ngram_index.Tree) -> tuple[list[int], list[int], list[float], list[int]]:
    """Tokens, parents, survival and feature bins of a tree."""
    return (
        np.frombuffer(tree.token_ids, "<i4").tolist(),
        np.frombuffer(tree.parents, "<i4").tolist(),
        np.frombuffer(tree.survival, "<f4").tolist(),
        np.frombuffer(tree.feature_bins, "<u2").tolist(),
    )


def paths(tree: ngram_index.Tree) -> list[tuple[int, ...]]:
    """Every node as the tokens from the root's child to itself, after checking what all trees must be."""
    tokens, parents, survival, _ = unpack(tree)
    assert len(tokens) == len(parents) == len(survival) == len(tree)
    found: list[tuple[int, ...]] = [()]
    reached = [1.0]
    for i, (token, parent, value) in enumerate(zip(tokens, parents, survival, strict=True)):
        assert 0 <= parent <= i
        assert 0 < value <= reached[parent]
        found.append((*found[parent], token))
        reached.append(value)
    assert len(set(found)) == len(found)
    for parent in range(len(found)):
        children = [value for value, above in zip(survival, parents, strict=True) if above == parent]
        assert sum(children) <= reached[parent] * (1 + 1e-5)
    return found[1:]
