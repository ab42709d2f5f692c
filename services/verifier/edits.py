"""What requests do to logits before the temperature: bias, allowed and banned tokens, min_tokens, penalties.

What becomes of a token's logit is a row of numbers that depends on the history alone. So it is kept from token to
token of an answer, and the logits are looked up where they are needed: here, or in compiled code (`look_loop.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from dartspec.services.common.types import Float32, Sampling

# Numbers of an edited token: its id; what is added to its logit, minus infinity where the token is removed; what a
# logit above 0 is divided by, and any other multiplied with; and what is subtracted at the end.
TOKEN, ADDED, FACTOR, TAKEN, FIELDS = 0, 1, 2, 3, 4

# Rows that a table has for tokens to come, at least.
_SPARE = 64


@dataclass
class History:
    """The tokens that penalties and limits look at: prompt and answer up to the node whose logits are processed."""

    prompt: frozenset[int] = frozenset()
    generated: Counter[int] = field(default_factory=Counter)
    length: int = 0
    _edits: Edits | None = field(default=None, init=False, repr=False, compare=False)

    @staticmethod
    def of(prompt: Iterable[int], generated: Iterable[int] = ()) -> History:
        """History of a prompt and the answer so far."""
        counts = Counter(generated)
        return History(frozenset(prompt), counts, counts.total())

    def append(self, token: int) -> None:
        """The answer grew by ``token``."""
        self.generated[token] += 1
        self.length += 1
        if self._edits is not None:
            if self.length == self._edits.sampling.min_tokens:
                self._edits = None  # what ends the answer is allowed from now on
            else:
                self._edits.count(token, self.generated[token])

    def edits(self, sampling: Sampling, enders: frozenset[int]) -> Edits:
        """What happens to logits now. The same object until other parameters are asked for, as long as it holds."""
        kept = self._edits
        if kept is None or kept.sampling is not sampling or kept.enders is not enders:
            kept = self._edits = Edits(self, sampling, enders)
        return kept


class Edits:
    """Tokens whose logits are not as the target made them, and what they are instead.

    table: float64 [room, FIELDS], of which the first ``edited`` rows are there, each for another token. Where only some
    tokens are allowed, all others are removed besides.
    """

    def __init__(self, history: History, sampling: Sampling, enders: frozenset[int]) -> None:
        self.sampling = sampling
        self.enders = enders
        self._repeats = sampling.repetition_penalty != 1.0
        self._counts = bool(sampling.presence_penalty or sampling.frequency_penalty)
        removed = set(sampling.banned_token_ids)
        if history.length < sampling.min_tokens:
            removed |= enders
        seen = history.prompt | history.generated.keys() if self._repeats else frozenset()
        counted = history.generated if self._counts else Counter[int]()
        tokens = dict.fromkeys([*sampling.logit_bias, *removed, *seen, *counted])
        self._places = {token: place for place, token in enumerate(tokens)}
        self.edited = len(tokens)
        self.table = _unchanged(self.edited + _SPARE)
        self.table[: self.edited, TOKEN] = list(tokens)
        for token, bias in sampling.logit_bias.items():
            self.table[self._places[token], ADDED] = bias
        self.table[[self._places[token] for token in removed], ADDED] = -np.inf
        self.table[[self._places[token] for token in seen], FACTOR] = sampling.repetition_penalty
        for token, times in counted.items():
            self.table[self._places[token], TAKEN] = self._taken(times)
        self.address = self.table.ctypes.data

    @property
    def any(self) -> bool:
        """Whether any logit is changed."""
        return bool(self.edited or self.sampling.allowed_token_ids)

    def count(self, token: int, times: int) -> None:
        """The answer has the token so many times now."""
        if not (self._repeats or self._counts):
            return
        place = self._places.get(token)
        if place is None:
            place = self._places[token] = self.edited
            self.edited += 1
            if self.edited > len(self.table):
                self.table = np.concatenate([self.table, _unchanged(self.edited)])
                self.address = self.table.ctypes.data
            self.table[place, TOKEN] = token
        self.table[place, FACTOR] = self.sampling.repetition_penalty
        self.table[place, TAKEN] = self._taken(times)

    def of(self, logits: Float32) -> NDArray[np.float64]:
        """A whole row [V]; minus infinity where a token was removed."""
        scores = logits.astype(np.float64)
        if self.sampling.allowed_token_ids:
            outside = np.ones(len(scores), dtype=bool)
            outside[list(self.sampling.allowed_token_ids)] = False
            scores[outside] = -np.inf
        tokens, added, factor, taken = self.table[: self.edited].T
        ids = tokens.astype(np.int64)
        values = np.where(added > -np.inf, scores[ids], -np.inf) + added
        scores[ids] = np.where(values > 0, values / factor, values * factor) - taken
        return scores

    def _taken(self, times: int) -> float:
        return self.sampling.presence_penalty + self.sampling.frequency_penalty * times


def _unchanged(count: int) -> NDArray[np.float64]:
    """Rows of a table that change nothing."""
    return np.tile(np.array([0.0, 0.0, 1.0, 0.0]), (count, 1))
