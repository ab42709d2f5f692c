"""The numbers of docs/exactness.md are those that the code gives."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from dartspec.services.verifier import attention, draw, kv_cache, linear, noise, sampling
from dartspec.services.verifier.edits import History
from dartspec.services.verifier.sampling import processed
from dartspec.services.verifier.tree import check_tree

from .worked_example import (
    NONE,
    PROMPT,
    SAMPLING,
    TREE,
    answer_without_ancestors,
    plain_answer,
    row_logits,
    table,
    tree_walk,
)

PAGE = (Path(__file__).parents[3] / "docs" / "exactness.md").read_text()


def test_the_table_of_the_worked_example() -> None:
    lines = table()
    assert len(lines) == 12
    written = [line for line in PAGE.splitlines() if line.startswith("| ") and line.count("|") == 9]
    assert [" ".join(line.split()) for line in written[1:]] == [" ".join(line.split()) for line in lines]


def test_the_tokens_of_the_worked_example() -> None:
    check_tree(TREE, 4)
    walked = tree_walk()
    assert walked.tokens == plain_answer()
    assert (walked.rows, walked.accepted) == ([0, 1, 4], 2)
    assert f"commits `{walked.tokens}`" in PAGE
    assert f"would be `{answer_without_ancestors()}`" in PAGE
    assert answer_without_ancestors() != plain_answer()


def test_the_probabilities_of_the_worked_example() -> None:
    scores = processed(row_logits(PROMPT[-1]), History.of(PROMPT), SAMPLING, NONE).scores
    law = np.exp(scores) / np.exp(scores).sum()
    assert "(" + ", ".join(f"{p:.3f}" for p in law) + ")" in PAGE


def test_the_constants_of_the_page() -> None:
    text = " ".join(PAGE.split())
    assert f"`{sampling.SAMPLER}`" in text
    assert f"{noise.MAX_GUMBEL:.3f}" in text
    assert f"tiles of exactly {linear.ONE_SHAPE.tile} rows" in text
    assert f"multiple of {attention.ROW_BLOCK}" in text
    assert f"multiple of {kv_cache.SLOT_BLOCK}" in text
    assert f"below {draw.MARGIN_LIMIT:g}" in text
