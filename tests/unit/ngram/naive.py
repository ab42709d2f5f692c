"""The index and its searches once more in plain Python, straight from the formulas and as slow as that is."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

Path = tuple[int, ...]
F32 = np.float32
EPSILON = F32(1e-10)


@dataclass(frozen=True)
class NaiveIndex:
    """Counts of every n-gram up to ``order``; a window counts for itself and for each of its prefixes."""

    order: int
    vocab_size: int
    counts: Counter[Path]

    @classmethod
    def build(cls, documents: Sequence[Sequence[int]], order: int, vocab_size: int) -> NaiveIndex:
        counts: Counter[Path] = Counter()
        for document in documents:
            for start in range(len(document)):
                window = tuple(document[start : start + order])
                counts.update(window[:length] for length in range(1, len(window) + 1))
        return cls(order, vocab_size, counts)

    def nodes(self) -> list[int]:
        """Distinct n-grams by length from 1."""
        return [sum(len(path) == length for path in self.counts) for length in range(1, self.order + 1)]

    def successors(self, context: Path) -> dict[int, int]:
        """Tokens seen after a context, with their counts."""
        n = len(context)
        return {path[n]: count for path, count in self.counts.items() if len(path) == n + 1 and path[:n] == context}

    def suffixes(self, context: Sequence[int]) -> list[Path]:
        """Suffixes of a context that were seen, longest first."""
        lengths = range(min(self.order - 1, len(context)), 0, -1)
        return [s for s in (tuple(context[len(context) - length :]) for length in lengths) if self.counts[s]]

    def score(self, context: Sequence[int], token: int) -> tuple[np.float32, int]:
        """Relative frequency after the longest suffix that knows the token, and that suffix's length."""
        for suffix in self.suffixes(context):
            if self.counts[(*suffix, token)]:
                return F32(self.counts[(*suffix, token)]) / F32(self.counts[suffix]), len(suffix)
        return F32(0), 0

    def unigram(self, token: int) -> float:
        """Witten-Bell unigram probability with a uniform base."""
        distinct = max(1, self.nodes()[0])
        windows = sum(count for path, count in self.counts.items() if len(path) == 1)
        return (self.counts[(token,)] + distinct / self.vocab_size) / (windows + distinct)

    def witten_bell(self, context: Sequence[int], token: int) -> float:
        """Witten-Bell probability of a token, backing off from the longest suffix to the unigram."""
        probability = self.unigram(token)
        for suffix in reversed(self.suffixes(context)):
            successors = self.successors(suffix)
            if successors:
                total, distinct = self.counts[suffix], len(successors)
                probability = (successors.get(token, 0) + distinct * probability) / (total + distinct)
        return probability

    def stupid_backoff(self, context: Sequence[int], token: int, factor: float) -> float:
        """Relative frequency after the longest suffix that knows the token, else of the token alone.

        Times the factor for every token by which that suffix is shorter than the context that counts.
        """
        longest = min(self.order - 1, len(context))
        matched = self.score(context, token)
        windows = sum(count for path, count in self.counts.items() if len(path) == 1)
        frequency = float(matched[0]) if matched[1] else self.counts[(token,)] / windows
        return float(frequency * factor ** (longest - matched[1]))

    def evidence(self, rule: str, context: Sequence[int], token: int, factor: float) -> float:
        """g of a token after a context by a score rule."""
        if rule == "reference":
            return float(self.score(context, token)[0])
        if rule == "stupid_backoff":
            return self.stupid_backoff(context, token, factor)
        witten_bell = self.witten_bell(context, token)
        return witten_bell if rule == "witten_bell" else witten_bell / self.unigram(token)


Offsets = Sequence[tuple[Sequence[int], Sequence[float]]]


def candidates(offsets: Offsets) -> list[dict[int, float]]:
    """Per offset token -> log-probability: the largest of equal tokens, none of probability 0, tokens ascending."""
    result = []
    for tokens, logprobs in offsets:
        best: dict[int, float] = {}
        for token, logprob in zip(tokens, logprobs, strict=True):
            if logprob > -math.inf:
                best[token] = max(logprob, best.get(token, -math.inf))
        result.append(dict(sorted(best.items())))
    return result


@dataclass(frozen=True)
class Search:
    """Result: the chosen paths in order, and the score of every path that was looked at.

    beam_gap: smallest difference between the last path that stayed in a beam and the first that did not.
    """

    chosen: list[Path]
    scores: dict[Path, float]
    beam_gap: float = math.inf


def reference(
    index: NaiveIndex,
    context: Sequence[int],
    offsets: Offsets,
    *,
    node_budget: int = 59,
    beam_width: int = 20,
    stop_token_ids: Sequence[int] = (),
    skip_ngram_at_first_level: bool = False,
    score_rule: str = "reference",
    backoff_factor: float = 0.4,
) -> Search:
    """Beam search of arXiv:2601.19278 in float32; ranks never rise from parent to child."""
    beam: list[Path] = [()]
    scores: dict[Path, np.float32] = {(): F32(0)}
    ranks: dict[Path, np.float32] = {(): F32(np.inf)}
    beam_gap = math.inf
    for level, offset in enumerate(candidates(offsets)):
        total = math.fsum(math.exp(logprob) for logprob in offset.values())
        extensions = []
        for path in beam:
            for token, logprob in offset.items():
                gain = F32(0.9**level) * np.log(F32(math.exp(logprob) / total) + EPSILON)
                if level > 0 or not skip_ngram_at_first_level:
                    g = index.evidence(score_rule, [*context, *path], token, backoff_factor)
                    gain += F32(0.5) * np.log(F32(g) + EPSILON)
                child = (*path, token)
                scores[child] = scores[path] + gain / F32((level + 1) ** 0.7)
                ranks[child] = min(ranks[path], scores[child])
                extensions.append(child)
        going_on = [path for path in extensions if path[-1] not in stop_token_ids]
        going_on.sort(key=lambda path: -scores[path])
        if len(going_on) > beam_width:
            beam_gap = min(beam_gap, float(scores[going_on[beam_width - 1]] - scores[going_on[beam_width]]))
        beam = going_on[:beam_width]
    looked_at = [path for path in ranks if path]
    chosen = sorted(looked_at, key=lambda path: (-ranks[path], len(path)))[:node_budget]
    return Search(chosen, {path: float(ranks[path]) for path in looked_at}, beam_gap)


@dataclass(frozen=True)
class Estimate:
    """How survival is estimated."""

    ngram_weight: float = 0.5
    score_rule: str = "divided"
    backoff_factor: float = 0.4
    transition_weight: float = 1.0
    transition: Callable[[int, int], float] | None = None


def steps(
    index: NaiveIndex, context: Sequence[int], offset: dict[int, float], by: Estimate, before: int | None = None
) -> dict[int, float]:
    """c of each candidate: p · g^w, scaled to the draft probability of all candidates together.

    After a node with the token `before`, p has the factor e^(weight · transition score), as a softmax has in which the
    tokens that are no candidates score 0.
    """
    p = {token: math.exp(logprob) for token, logprob in offset.items()}
    if by.transition is not None and before is not None:
        rest = max(0.0, 1.0 - math.fsum(p.values()))
        factors = {token: math.exp(by.transition_weight * by.transition(before, token)) for token in p}
        total = math.fsum(p[token] * factors[token] for token in p) + rest
        p = {token: value * factors[token] / total for token, value in p.items()}
        offset = {token: math.log(max(value, 1e-300)) for token, value in p.items()}
    g = {token: index.evidence(by.score_rule, context, token, by.backoff_factor) for token in offset}
    if by.score_rule in ("reference", "stupid_backoff"):  # which can be 0
        g = {token: value + float(EPSILON) for token, value in g.items()}
    logs = {token: logprob + by.ngram_weight * math.log(g[token]) for token, logprob in offset.items()}
    top = max(logs.values(), default=0.0)
    raw = {token: math.exp(value - top) for token, value in logs.items()}
    scale = min(1.0, math.fsum(p.values())) / math.fsum(raw.values()) if raw else 0.0
    return {token: value * scale for token, value in raw.items()}


def survival_of(
    index: NaiveIndex, context: Sequence[int], offsets: Offsets, path: Path, by: Estimate = Estimate()
) -> float:
    """Estimated probability that the target's walk reaches the end of a path."""
    value = 1.0
    for depth, offset in enumerate(candidates(offsets)[: len(path)]):
        before = path[depth - 1] if depth else None
        value *= steps(index, [*context, *path[:depth]], offset, by, before)[path[depth]]
    return value


def survival(
    index: NaiveIndex,
    context: Sequence[int],
    offsets: Offsets,
    *,
    node_budget: int = 59,
    stop_token_ids: Sequence[int] = (),
    by: Estimate = Estimate(),
) -> Search:
    """The nodes of highest survival, one after the other from the root."""
    levels = candidates(offsets)
    scores: dict[Path, float] = {}
    frontier: set[Path] = set()
    chosen: list[Path] = []

    def expand(path: Path) -> None:
        if len(path) < len(levels) and not (path and path[-1] in stop_token_ids):
            before = path[-1] if path else None
            for token, step in steps(index, [*context, *path], levels[len(path)], by, before).items():
                scores[(*path, token)] = scores.get(path, 1.0) * step
                frontier.add((*path, token))

    expand(())
    while frontier and len(chosen) < node_budget:
        best = max(frontier, key=lambda path: (scores[path], -len(path)))
        frontier.remove(best)
        chosen.append(best)
        expand(best)
    return Search(chosen, scores)
