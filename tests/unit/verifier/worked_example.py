"""The worked example of docs/exactness.md: four tokens, a target that looks at the last one only, one small tree."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dartspec.services.common.types import Sampling, Tree
from dartspec.services.verifier.edits import History
from dartspec.services.verifier.noise import gumbel
from dartspec.services.verifier.sampling import choose, processed
from dartspec.services.verifier.tree import Walk

from .walks import walk

# Raw logits of the next token, by the last one.
LOGITS = {0: [0.1, 1.4, 0.8, 0.2], 1: [1.2, 0.3, 0.9, -0.5], 2: [0.6, 0.7, 1.1, -1.0], 3: [0.5, 0.2, 0.4, 0.9]}
PROMPT = [3, 1]
SEED = 1
SAMPLING = Sampling(0.8, 3, presence_penalty=0.5)
NONE: frozenset[int] = frozenset()
TREE = Tree(
    np.array([0, 2, 0, 1, 1], np.int32),
    np.array([0, 0, 1, 1, 2], np.int32),
    np.full(5, 0.5, np.float32),
    np.zeros(5, np.uint16),
)


def row_logits(last: int) -> np.ndarray:
    return np.array(LOGITS[last], np.float32)


def token_at(position: int, last: int, answer: Sequence[int]) -> int:
    """What the target chooses for ``position`` behind ``last``, with ``answer`` generated so far."""
    return choose(row_logits(last), position, History.of(PROMPT, answer), SAMPLING, SEED, NONE)


def plain_answer() -> list[int]:
    """Three tokens, one after another."""
    answer: list[int] = []
    for position in range(2, 5):
        answer.append(token_at(position, (PROMPT + answer)[-1], answer))
    return answer


def answer_without_ancestors() -> list[int]:
    """The same with a mistake: penalties that do not count what the same pass has accepted."""
    answer: list[int] = []
    for position in range(2, 5):
        answer.append(token_at(position, (PROMPT + answer)[-1], []))
    return answer


def tree_walk() -> Walk:
    """The walk of one pass over the tree."""
    tokens = [PROMPT[-1], *TREE.token_ids.tolist()]
    answer: list[int] = []

    def choose_at(row: int) -> int:
        token = token_at(2 + len(answer), tokens[row], answer)
        answer.append(token)
        return token

    return walk(TREE, choose_at, lambda token: False)


def table() -> list[str]:
    """The page's table, a line a token of the vocabulary and a walked position."""
    lines = []
    walked = tree_walk()
    last, answer = PROMPT[-1], []
    for position, (row, chosen) in enumerate(zip(walked.rows, walked.tokens, strict=True), start=2):
        scores = processed(row_logits(last), History.of(PROMPT, answer), SAMPLING, NONE)
        noise = gumbel(scores.ids, position, SEED)
        for token in range(4):
            cells = [LOGITS[last][token], scores.scores[token], noise[token], scores.scores[token] + noise[token]]
            numbers = " | ".join(f"{cell:.3f}" for cell in cells)
            lines.append(f"| {position} | {row} | {token} | {numbers} | {'chosen' if token == chosen else ''} |")
        last = chosen
        answer.append(chosen)
    return lines
