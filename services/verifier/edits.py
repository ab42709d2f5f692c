"""What requests do to logits before the temperature: bias, allowed and banned tokens, min_tokens, penalties. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from dartspec.services.common.types import Float32, Sampling
from dartspec.services.verifier.rows import Row, floats

Ids = NDArray[np.int64]


@dataclass
class History:
    """The tokens that penalties and limits look at: prompt and answer up to the node whose logits are processed."""

    prompt: frozenset[int] = frozenset()
    generated: Counter[int] = field(default_factory=Counter)
    length: int = 0
    # Tokens of the answer that the prompt does not have, in the order of their first appearance.
    _new: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self._new = [token for token in self.generated if token not in self.prompt]

    @staticmethod
    def of(prompt: Iterable[int], generated: Iterable[int] = ()) -> History:
        """History of a prompt and the answer so far."""
        counts = Counter(generated)
        return History(frozenset(prompt), counts, counts.total())

    def append(self, token: int) -> None:
        """The answer grew by ``token``."""
        if token not in self.generated and token not in self.prompt:
            self._new.append(token)
        self.generated[token] += 1
        self.length += 1

    def seen(self) -> Ids:
        """All tokens, once each."""
        return np.concatenate((self._prompt_ids, _ids(self._new)))

    @cached_property
    def _prompt_ids(self) -> Ids:
        return _ids(self.prompt)


@dataclass(frozen=True)
class Edits:
    """Tokens whose logits are not as the target made them, ids rising, and what they are instead."""

    ids: Ids
    values: NDArray[np.float64]


UNEDITED = Edits(np.empty(0, np.int64), np.empty(0))


def edits_logits(sampling: Sampling, history: History) -> bool:
    """Whether any logit is changed."""
    return bool(
        sampling.logit_bias
        or sampling.allowed_token_ids
        or sampling.banned_token_ids
        or history.length < sampling.min_tokens
        or sampling.repetition_penalty != 1.0
        or sampling.presence_penalty
        or sampling.frequency_penalty
    )


def edited(logits: Float32, history: History, sampling: Sampling, enders: frozenset[int]) -> NDArray[np.float64]:
    """A whole row [V]; minus infinity where a token was removed."""
    scores = logits.astype(np.float64)
    if sampling.allowed_token_ids:
        outside = np.ones(len(scores), dtype=bool)
        outside[list(sampling.allowed_token_ids)] = False
        scores[outside] = -np.inf
    _apply(scores, lambda ids: ids, history, sampling, enders)
    return scores


def edits(row: Row, history: History, sampling: Sampling, enders: frozenset[int]) -> Edits | None:
    """The same as what is changed of the row; None when that is nearly all of it, since few tokens are allowed."""
    if not edits_logits(sampling, history):
        return UNEDITED
    if sampling.allowed_token_ids:
        return None
    parts = [_ids(sampling.logit_bias), _ids(sampling.banned_token_ids)]
    if history.length < sampling.min_tokens:
        parts.append(_ids(enders))
    if sampling.repetition_penalty != 1.0:
        parts.append(history.seen())
    elif sampling.presence_penalty or sampling.frequency_penalty:
        parts.append(_ids(history.generated))
    ids = np.unique(np.concatenate(parts))  # requests may name a token twice
    values = floats(row.stored[ids]).astype(np.float64)
    _apply(values, lambda some: np.searchsorted(ids, some), history, sampling, enders)
    return Edits(ids, values)


def _apply(
    scores: NDArray[np.float64],
    places: Callable[[Ids], Ids],
    history: History,
    sampling: Sampling,
    enders: frozenset[int],
) -> None:
    """In place. places: where in ``scores`` the logits of tokens are."""
    if sampling.logit_bias:
        scores[places(_ids(sampling.logit_bias))] += np.array(list(sampling.logit_bias.values()))
    if sampling.banned_token_ids:
        scores[places(_ids(sampling.banned_token_ids))] = -np.inf
    if history.length < sampling.min_tokens:
        scores[places(_ids(enders))] = -np.inf
    if sampling.repetition_penalty != 1.0:
        seen = places(history.seen())
        values = scores[seen]
        scores[seen] = np.where(values > 0, values / sampling.repetition_penalty, values * sampling.repetition_penalty)
    if (sampling.presence_penalty or sampling.frequency_penalty) and history.generated:
        counts = np.fromiter(history.generated.values(), dtype=np.float64)
        scores[places(_ids(history.generated))] -= sampling.presence_penalty + sampling.frequency_penalty * counts


def _ids(tokens: Iterable[int]) -> Ids:
    return np.fromiter(tokens, dtype=np.int64)
