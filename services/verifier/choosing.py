"""The tokens that the rows of a pass choose, of all its sessions: level by level down their trees, so that the rows of
a level are looked at together."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from dartspec.services.common.errors import DartspecError
from dartspec.services.common.types import TopTokens, Tree
from dartspec.services.verifier.logprobs import log_probability, top_tokens
from dartspec.services.verifier.looks import Toss, look
from dartspec.services.verifier.rows import Row, stored
from dartspec.services.verifier.sampling import choose_with_margin, toss_of
from dartspec.services.verifier.session import Session
from dartspec.services.verifier.tree import Walk


class Choices:
    """What one session chooses in a pass: the walk, and for each token its log-probability under the raw logits, its
    margin, and the likeliest tokens if it asked for them. What is chosen goes to the session's tokens, too.

    error: why the session failed. finished: the answer is over.
    """

    __slots__ = (
        "_first",
        "_position",
        "error",
        "finished",
        "logprobs",
        "margins",
        "session",
        "top_logprobs",
        "walk",
    )

    def __init__(self, session: Session, tree: Tree, first: int, position: int) -> None:
        """first: the root's row among all whose logits there are. position: of the first token that is chosen."""
        self.session = session
        self.walk = Walk(tree)
        self.logprobs: list[float] = []
        self.margins: list[float] = []
        self.top_logprobs: list[TopTokens] = []
        self.finished = False
        self.error: DartspecError | None = None
        self._first = first
        self._position = position

    @property
    def row(self) -> int:
        """The one that chooses next, among all whose logits there are."""
        return self._first + self.walk.rows[-1]

    def toss(self, vocab: int) -> Toss | None:
        """Of the next token."""
        session, position = self.session, self._position + len(self.margins)
        opened = session.opened
        return toss_of(vocab, position, session.history, opened.sampling, opened.seed, session.enders)

    def take(self, row: Row) -> bool:
        """Choose the next token from its row; whether there is another one to choose."""
        session = self.session
        opened, history = session.opened, session.history
        if row.drawn is not None:
            token, margin, logit = row.drawn
        else:
            position = self._position + len(self.margins)
            token, margin = choose_with_margin(row, position, history, opened.sampling, opened.seed, session.enders)
            logit = row.logit(token)
        normalizer = row.summary.log_normalizer
        self.margins.append(margin)
        self.logprobs.append(log_probability(logit, normalizer))
        if opened.sampling.top_logprobs:
            self.top_logprobs.append(top_tokens(row.values, opened.sampling.top_logprobs, normalizer))
        history.append(token)
        session.tokens.append(token)
        self.finished = session.finish_of(token) is not None
        return self.walk.step(token, self.finished)


def choose_all(choices: Sequence[Choices], logits: torch.Tensor) -> None:
    """Let every session choose. logits [n, V], on the host if there are choices."""
    if not choices:
        return
    every, vocab, going = stored(logits), logits.shape[1], list(choices)
    while going:
        rows = look(every, [each.row for each in going], [each.toss(vocab) for each in going])
        going = [each for each, row in zip(going, rows, strict=True) if _goes_on(each, row)]


def _goes_on(choices: Choices, row: Row) -> bool:
    try:
        return choices.take(row)
    except DartspecError as error:
        choices.error = error
        return False
