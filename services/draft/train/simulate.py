"""What a head would commit on texts the target wrote: hit rates by offset, and rounds of a chain and of a tree."""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from dartspec.services.draft.head import DraftHead
from dartspec.services.draft.train.packed import PackedText, packed_hidden
from dartspec.services.draft.train.teacher import TextSource, TextTensors

TOP_K = 25


@dataclass(frozen=True)
class Evaluation:
    """hit1, hit10: share of prefixes whose true token at offset t is the head's first, or among its first ten.

    chain, tree_16, tree_59: tokens committed a round (accepted + 1) when the texts are decoded round by round, with the
    likeliest chain and with trees of 16 and 59 nodes by the product of the head's probabilities, no n-gram counts.
    """

    hit1: list[float]
    hit10: list[float]
    chain: float
    tree_16: float
    tree_59: float
    positions: int


@torch.inference_mode()
def evaluate(head: DraftHead, texts: TextSource, limit: int = 32) -> Evaluation:
    """Evaluate on the first `limit` texts; the text itself stands for what the target chooses."""
    depth = head.config.depth
    hit1, hit10, seen = np.zeros(depth), np.zeros(depth), np.zeros(depth)
    tokens, rounds = np.zeros(3), np.zeros(3)
    for number in range(min(limit, len(texts))):
        accepted: list[tuple[int, int, int]] = []
        for ids, logprobs, truth in _prefixes(head, texts.batch([number])[0]):
            hits = ids[: len(truth)] == truth[:, None]
            hit1[: len(truth)] += hits[:, 0]
            hit10[: len(truth)] += hits[:, :10].any(-1)
            seen[: len(truth)] += 1
            ranks = np.where(hits.any(-1), hits.argmax(-1), -1)
            chain = int(np.cumprod(ranks == 0).sum())
            accepted.append((chain, accepted_in_tree(logprobs, ranks, 16), accepted_in_tree(logprobs, ranks, 59)))
        for kind in range(3):
            spans = rounds_of([row[kind] for row in accepted])
            tokens[kind] += sum(spans)
            rounds[kind] += len(spans)
    seen, rounds = np.maximum(seen, 1), np.maximum(rounds, 1)
    return Evaluation(
        [round(float(x), 4) for x in hit1 / seen],
        [round(float(x), 4) for x in hit10 / seen],
        round(float(tokens[0] / rounds[0]), 4),
        round(float(tokens[1] / rounds[1]), 4),
        round(float(tokens[2] / rounds[2]), 4),
        int(seen[0]),
    )


def rounds_of(accepted: list[int]) -> list[int]:
    """Tokens committed by each round of decoding a text whose i-th prefix would accept `accepted[i]` nodes."""
    spans, place = [], 0
    while place < len(accepted):
        spans.append(accepted[place] + 1)
        place += spans[-1]
    return spans


def accepted_in_tree(logprobs: NDArray[np.float32], ranks: NDArray[np.int64], budget: int) -> int:
    """Nodes of the true path inside the best-first tree of `budget` nodes.

    logprobs [d, k], descending in each offset; ranks [offsets], the true token's rank at each offset, -1 if absent.
    Nodes are taken in order of the product of their path's probabilities.
    """
    depth, width = logprobs.shape
    accepted = 0
    # cost (minus the path's log-probability), level, rank, the parent's log-probability, parent is on the true path
    frontier: list[tuple[float, int, int, float, bool]] = [(-float(logprobs[0, 0]), 0, 0, 0.0, True)]
    for _ in range(budget):
        if not frontier:
            break
        cost, level, rank, above, on_path = heapq.heappop(frontier)
        correct = on_path and level < len(ranks) and bool(ranks[level] == rank)
        accepted = max(accepted, level + 1) if correct else accepted
        if rank + 1 < width:
            heapq.heappush(frontier, (-(above + float(logprobs[level, rank + 1])), level, rank + 1, above, on_path))
        if level + 1 < depth:
            heapq.heappush(frontier, (cost - float(logprobs[level + 1, 0]), level + 1, 0, -cost, correct))
    return accepted


def _prefixes(
    head: DraftHead, text: TextTensors
) -> list[tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.int64]]]:
    """Per prefix of the answer: target ids [d, k], log-probabilities [d, k], and the tokens x[n+1] .. that follow."""
    depth = head.config.depth
    prefixes = torch.arange(text.prompt_length, len(text.tokens) - 1)
    wanted = torch.ones(len(prefixes), depth, dtype=torch.bool)
    logits = head.logits(packed_hidden(head, [PackedText(text, prefixes)], wanted)).float().cpu()
    best = logits.topk(min(TOP_K, logits.shape[-1]), -1)
    ids = head.target_ids().cpu()[best.indices].unflatten(0, (len(prefixes), depth)).numpy()
    logprobs = (best.values - logits.logsumexp(-1, keepdim=True)).unflatten(0, (len(prefixes), depth)).numpy()
    tokens = text.tokens.cpu().numpy()
    return [(ids[row], logprobs[row], tokens[n + 1 : n + 1 + depth]) for row, n in enumerate(prefixes.tolist())]
