"""What a head would commit on texts the target wrote: hit rates by offset, and rounds of a chain and of a tree."""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import Any

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
    likeliest chain and with trees of 16 and 59 nodes by the product of the head's probabilities, no n-gram counts. A
    head with a transition score is simulated with it; hit rates are without.
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
        accepted: list[tuple[int, ...]] = []
        for ids, logprobs, truth, after in _prefixes(head, texts.batch([number])[0]):
            hits = ids[: len(truth)] == truth[:, None]
            hit1[: len(truth)] += hits[:, 0]
            hit10[: len(truth)] += hits[:, :10].any(-1)
            seen[: len(truth)] += 1
            ranks = np.where(hits.any(-1), hits.argmax(-1), -1)
            small, large = (accepted_in_tree(logprobs, ranks, budget, after) for budget in (16, 59))
            accepted.append((_in_chain(ranks, after), small, large))
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


def conditional(logprobs: NDArray[Any], block: NDArray[Any]) -> NDArray[Any]:
    """Log-probabilities [d-1, k, k] of each candidate after each of the offset before, from scores of that shape.

    logprobs [d, k]; block [d-1, k, k]. Tokens that are no candidates keep their share, as with a score of 0.
    """
    scores = logprobs[1:, None, :] + block
    others = np.log(np.maximum(1.0 - np.exp(logprobs[1:]).sum(-1), 1e-9))[:, None]
    return scores - np.logaddexp(np.logaddexp.reduce(scores, -1), others)[..., None]


def accepted_in_tree(
    logprobs: NDArray[Any], ranks: NDArray[np.int64], budget: int, after: NDArray[Any] | None = None
) -> int:
    """Nodes of the true path inside the best-first tree of `budget` nodes.

    logprobs [d, k], descending in each offset; ranks [offsets], the true token's rank at each offset, -1 if absent.
    Nodes are taken in order of the product of their path's probabilities: those of the offsets, or, given `after` as
    from `conditional`, each after its parent.
    """
    depth, width = logprobs.shape
    accepted = 0
    order = None if after is None else np.argsort(-after, -1, kind="stable")

    def place(level: int, parent: int, number: int) -> tuple[int, float]:  # of a node's number-th best child
        if after is None or order is None or level == 0:
            return number, float(logprobs[level, number])
        rank = int(order[level - 1, parent, number])
        return rank, float(after[level - 1, parent, rank])

    # cost (minus the path's log-probability), level, parent's rank, number among its siblings, rank, the parent's
    # log-probability, parent is on the true path
    first, best = place(0, 0, 0)
    frontier: list[tuple[float, int, int, int, int, float, bool]] = [(-best, 0, 0, 0, first, 0.0, True)]
    for _ in range(budget):
        if not frontier:
            break
        cost, level, parent, number, rank, above, on_path = heapq.heappop(frontier)
        correct = on_path and level < len(ranks) and bool(ranks[level] == rank)
        accepted = max(accepted, level + 1) if correct else accepted
        if number + 1 < width:
            sibling, gain = place(level, parent, number + 1)
            heapq.heappush(frontier, (-(above + gain), level, parent, number + 1, sibling, above, on_path))
        if level + 1 < depth:
            child, gain = place(level + 1, rank, 0)
            heapq.heappush(frontier, (cost - gain, level + 1, rank, 0, child, -cost, correct))
    return accepted


def _in_chain(ranks: NDArray[np.int64], after: NDArray[Any] | None) -> int:
    """Leading offsets at which the likeliest candidate, after the likeliest before it, is the true one."""
    rank, accepted = 0, 0
    for level, true in enumerate(ranks.tolist()):
        if after is not None and level > 0:
            rank = int(after[level - 1, rank].argmax())
        if true != rank:
            break
        accepted += 1
    return accepted


def _prefixes(head: DraftHead, text: TextTensors) -> list[tuple[Any, Any, Any, Any]]:
    """Per prefix of the answer: target ids [d, k], log-probabilities [d, k], the tokens x[n+1] .. that follow, and
    `conditional` of them, None for a head without a transition score."""
    depth = head.config.depth
    prefixes = torch.arange(text.prompt_length, len(text.tokens) - 1)
    wanted = torch.ones(len(prefixes), depth, dtype=torch.bool)
    logits = head.logits(packed_hidden(head, [PackedText(text, prefixes)], wanted)).float()
    best = logits.topk(min(TOP_K, logits.shape[-1]), -1)
    candidates = best.indices.unflatten(0, (len(prefixes), depth))
    block = None if head.transition is None else head.transition.block(candidates).float().cpu().numpy()
    ids = head.target_ids()[candidates].cpu().numpy()
    logprobs = (best.values - logits.logsumexp(-1, keepdim=True)).unflatten(0, (len(prefixes), depth)).cpu().numpy()
    tokens = text.tokens.cpu().numpy()
    return [
        (
            ids[row],
            logprobs[row],
            tokens[n + 1 : n + 1 + depth],
            None if block is None else conditional(logprobs[row], block[row]),
        )
        for row, n in enumerate(prefixes.tolist())
    ]
