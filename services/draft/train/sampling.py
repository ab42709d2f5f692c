"""What each pass learns from: texts in shuffled order, prefixes of each, and the weights of their offsets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dartspec.services.draft.train.settings import TrainSettings


@dataclass(frozen=True)
class Chosen:
    """A text by number, the prefixes int64 [G] to train, and the weights float32 [G, d] of their offsets."""

    text: int
    prefixes: Tensor
    weights: Tensor


def sample_prefixes(length: int, prompt_length: int, count: int, generator: torch.Generator) -> Tensor:
    """Up to `count` distinct prefixes n of the answer, prompt_length <= n <= length - 2, ascending: int64 [G]."""
    order = torch.randperm(length - 1 - prompt_length, generator=generator)
    return order[:count].sort().values + prompt_length


def offset_weights(
    prefixes: Tensor, length: int, depth: int, settings: TrainSettings, generator: torch.Generator
) -> Tensor:
    """Loss weights float32 [G, d]; 0 where offset t has no token x[n+t] in the text, was not drawn, or has nothing
    that is trained: offset 1 follows the pending token, which the head is fed, so no transition leads to it.

    A share of the prefixes is trained at all offsets and weighs more beyond `shallow_depth`, which leaves the
    expected loss unchanged.
    """
    offsets = torch.arange(1, depth + 1)
    weights = settings.gamma ** (offsets - 1).float() * (prefixes[:, None] + offsets < length)
    if settings.train == "transition":
        weights[:, 0] = 0.0
    deep = torch.rand(len(prefixes), 1, generator=generator) < settings.deep_share
    return torch.where(offsets > settings.shallow_depth, weights * deep / settings.deep_share, weights)


class Sampler:
    """An endless stream of passes of `settings.prefixes` prefixes each: every text once, in a new order, and again.

    The stream depends on the seed and the texts alone. Processes that share the work all run the whole stream and take
    their turns, so how many they are changes nothing. `state` and `load` continue it exactly.
    """

    def __init__(self, sizes: Sequence[tuple[int, int]], settings: TrainSettings, depth: int) -> None:
        """sizes: (tokens, prompt tokens) of each text; every text needs two answer tokens."""
        self.sizes, self.settings, self.depth = sizes, settings, depth
        self._generator = torch.Generator().manual_seed(settings.seed)
        self._order = torch.randperm(len(sizes), generator=self._generator)
        self._place = 0

    def next_pass(self) -> list[Chosen]:
        """Texts and prefixes of one pass: of exactly `settings.prefixes` those that weigh anything, maybe none.

        When the whole head is trained all do, by offset 1.
        """
        chosen, left = [], self.settings.prefixes
        while left > 0:
            text = self._next_text()
            length, prompt_length = self.sizes[text]
            wanted = min(self.settings.per_text, left)
            prefixes = sample_prefixes(length, prompt_length, wanted, self._generator)
            weights = offset_weights(prefixes, length, self.depth, self.settings, self._generator)
            useful = (weights > 0).any(-1)
            if useful.any():
                chosen.append(Chosen(text, prefixes[useful], weights[useful]))
            left -= len(prefixes)
        return chosen

    def state(self) -> dict[str, Any]:
        """Everything that the rest of the stream depends on."""
        return {"generator": self._generator.get_state(), "order": self._order.clone(), "place": self._place}

    def load(self, state: dict[str, Any]) -> None:
        """Continue where `state` was taken; of other texts, begin a new order with the same generator."""
        self._generator.set_state(state["generator"])
        if len(state["order"]) == len(self.sizes):
            self._order, self._place = state["order"], state["place"]
        else:
            self._order, self._place = torch.randperm(len(self.sizes), generator=self._generator), 0

    def _next_text(self) -> int:
        if self._place == len(self._order):
            self._order, self._place = torch.randperm(len(self.sizes), generator=self._generator), 0
        self._place += 1
        return int(self._order[self._place - 1])
