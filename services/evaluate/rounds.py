"""Rounds of decoding an answer that is known: a tree at n, the walk along the answer, the next round where it ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dartspec.services.common.types import Int32
from dartspec.services.evaluate.grid import Search
from dartspec.services.evaluate.record import Recording
from dartspec.services.ngram.trees import TreeReader
from dartspec.services.verifier.decoder import best_chain

# What a gateway sends of the context: order - 1 of the longest index.
CONTEXT_TOKENS = 4


@dataclass(frozen=True)
class Committed:
    """Sums over rounds; ``mean`` is M = A + 1, the tokens that a round commits."""

    rounds: int = 0
    accepted: int = 0

    @property
    def mean(self) -> float | None:
        """M, None without a round."""
        return self.accepted / self.rounds + 1.0 if self.rounds else None


def committed_by_budget(
    recordings: Sequence[Recording], shared: bool, search: Search, budgets: Sequence[int], reader: TreeReader
) -> dict[int, list[Committed]]:
    """For each node budget what every recording's rounds commit.

    A survival tree of fewer nodes is the beginning of one of more, since nodes are found best first: the largest budget
    answers for all, and a position that several budgets visit is searched once.
    """
    if search.mode == "reference":
        return {budget: _walk(recordings, shared, search, [budget], reader)[budget] for budget in budgets}
    return _walk(recordings, shared, search, budgets, reader)


def true_path(tokens: Int32, parents: Int32, truth: Sequence[int]) -> list[int]:
    """Places in the tree of the nodes that spell ``truth`` from the root on, as far as it holds them."""
    children = {edge: place for place, edge in enumerate(zip(parents.tolist(), tokens.tolist(), strict=True))}
    path: list[int] = []
    at = 0
    for token in truth:
        place = children.get((at, token))
        if place is None:
            break
        path.append(place)
        at = place + 1
    return path


def _walk(
    recordings: Sequence[Recording], shared: bool, search: Search, budgets: Sequence[int], reader: TreeReader
) -> dict[int, list[Committed]]:
    most = max(budgets)
    paths: list[dict[int, list[int]]] = [{} for _ in recordings]
    found: dict[int, list[Committed]] = {}
    for budget in sorted(budgets, reverse=True):
        sums = [Committed() for _ in recordings]
        places = {i: r.prompt_length for i, r in enumerate(recordings) if r.proposals[shared]}
        while places:
            unknown = [(i, n) for i, n in places.items() if n not in paths[i]]
            for (i, n), path in zip(unknown, _paths(recordings, shared, unknown, search, most, reader), strict=True):
                paths[i][n] = path
            for i, n in list(places.items()):
                accepted = sum(place < budget for place in paths[i][n])
                sums[i] = Committed(sums[i].rounds + 1, sums[i].accepted + accepted)
                places[i] = n + accepted + 1
                if places[i] not in recordings[i].positions:
                    del places[i]
        found[budget] = sums
    return found


def _paths(
    recordings: Sequence[Recording],
    shared: bool,
    wanted: Sequence[tuple[int, int]],
    search: Search,
    nodes: int,
    reader: TreeReader,
) -> list[list[int]]:
    """The true path's places in the tree of each (recording, n)."""
    if not wanted:
        return []
    proposals = [recordings[i].proposals[shared][n - recordings[i].prompt_length].cut(search.k) for i, n in wanted]
    stop_ids = recordings[wanted[0][0]].stop_ids
    if search.mode == "chain":
        chains = [best_chain(offered, nodes, stop_ids) for offered in proposals]
        trees = [(chain.token_ids, chain.parents) for chain in chains]
    else:
        contexts = [recordings[i].tokens[max(0, n + 1 - CONTEXT_TOKENS) : n + 1] for i, n in wanted]
        trees = reader.search(
            list(zip(contexts, proposals, strict=True)),
            mode=search.mode,
            score_rule=search.rule or "auto",
            node_budget=nodes,
            beam_width=search.w or 1,
            ngram_weight=search.weight,
            transition_weight=search.transition,
            stop_token_ids=sorted(stop_ids),
        )
    return [
        true_path(*tree, recordings[i].tokens[n + 1 : n + 1 + len(tree[0])])
        for tree, (i, n) in zip(trees, wanted, strict=True)
    ]
