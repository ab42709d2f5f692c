"""One step of the engine: a target pass over the rows of many sessions, the walks, a draft. No queue or wire."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from dartspec.services.common.errors import DartspecError
from dartspec.services.common.types import Int32, Proposals, Tree
from dartspec.services.draft.propose import Proposer
from dartspec.services.verifier.attention import Segment, causal_rows
from dartspec.services.verifier.choosing import Choices, choose_all
from dartspec.services.verifier.commit import Kept, draft_input, keep
from dartspec.services.verifier.scheduler import PREFILL_ROWS
from dartspec.services.verifier.session import Session
from dartspec.services.verifier.target import Target
from dartspec.services.verifier.tree import depths, visible_rows

# Depth of a row without a tree, and what it sees.
_ALONE = depths(Tree.empty()), visible_rows(Tree.empty())


class Work(NamedTuple):
    """What a session does in a pass: the next ``rows`` tokens of its prompt, or, with ``rows`` 0, verify ``tree``."""

    session: Session
    tree: Tree
    rows: int = 0


class Decoder:
    """Target and draft head at work on sessions.

    pass_seconds: what the last step's pass took, up to the copy of its logits to the host. depths: of its rows, one
    array for each of its works. share_noise: drafts for sessions that sample follow the noise that they sample with.
    """

    def __init__(self, target: Target, proposer: Proposer | None, top_k: int, share_noise: bool = True) -> None:
        self.target = target
        self.proposer = proposer
        self.top_k = top_k
        self.share_noise = share_noise
        self.pass_seconds = 0.0
        self.depths: list[Int32] = []

    def step(self, works: Sequence[Work]) -> list[Choices | DartspecError | None]:
        """One pass for all of ``works``. For each what it committed, None when more of its prompt is left, or why its
        session failed; the pass itself may raise, and then nothing is committed for anybody."""
        segments = [_segment(work) for work in works]
        self.depths = [segment.depth for segment in segments]
        begin = time.perf_counter()
        out = self.target.forward(segments)
        starts = list(accumulate((segment.rows for segment in segments), initial=0))
        wanted = [_rows_with_logits(work, start) for work, start in zip(works, starts, strict=False)]
        rows = [row for part in wanted for row in part]
        hidden = out.hidden if len(rows) == len(out.hidden) else out.hidden[rows]
        logits = self.target.host_logits(hidden) if rows else hidden  # the step's one copy to the host
        self.pass_seconds = time.perf_counter() - begin
        firsts = accumulate(map(len, wanted), initial=0)
        choices = [_choices(work, first) for work, first in zip(works, firsts, strict=False)]
        choose_all([each for each in choices if each is not None], logits)
        results: list[Choices | DartspecError | None] = []
        kept: list[Kept] = []
        for work, start, each in zip(works, starts, choices, strict=False):
            if each is not None and each.error is not None:
                work.session.sound = False
                results.append(each.error)
                continue
            results.append(each)
            kept.append(Kept(work.session, start, each.walk.rows if each and not work.rows else range(work.rows)))
        try:
            keep(kept, out.features, self.proposer)
        except Exception:
            for part in kept:
                part.session.sound = False
            raise
        return results

    def prefill(self, session: Session) -> Choices | None:
        """The next chunk of one session's prompt; after the last one, the first token. None: more is left."""
        return self._alone(Work(session, Tree.empty(), min(PREFILL_ROWS, session.prompt_left)))

    def verify(self, session: Session, tree: Tree) -> Choices:
        """A pass over one session's pending token and ``tree``. Empty: plain decoding."""
        commit = self._alone(Work(session, tree))
        assert commit is not None
        return commit

    def draft(self, sessions: Sequence[Session], offsets: int | None = None) -> None:
        """Set what the head offers for the positions after the pending token of each session, all in one pass.

        offsets: only so many of these positions, if the head has more.
        """
        assert self.proposer is not None
        depth = self.proposer.config.depth
        inputs = [draft_input(session, self.share_noise) for session in sessions]
        drafted = self.proposer.propose(inputs, self.top_k, depth if offsets is None else min(offsets, depth))
        for session, proposals in zip(sessions, drafted, strict=True):
            assert session.features is not None
            session.features.count = 0
            session.proposals = proposals

    def _alone(self, work: Work) -> Choices | None:
        (result,) = self.step([work])
        if isinstance(result, DartspecError):
            raise result
        return result


def _segment(work: Work) -> Segment:
    session, tree = work.session, work.tree
    if work.rows:
        chunk = session.tokens[session.n : session.n + work.rows]
        return Segment(session.cache, chunk, np.arange(work.rows, dtype=np.int32), causal_rows(work.rows))
    pending = session.tokens[session.n]
    if not len(tree):
        return Segment(session.cache, [pending], *_ALONE)
    return Segment(session.cache, [pending, *tree.token_ids.tolist()], depths(tree), visible_rows(tree))


def _rows_with_logits(work: Work, start: int) -> range:
    """Rows of the pass whose logits may choose a token: all of a tree, the last one of a prompt."""
    if not work.rows:
        return range(start, start + len(work.tree) + 1)
    return range(start + work.rows - 1, start + work.rows) if work.rows == work.session.prompt_left else range(0)


def _choices(work: Work, first: int) -> Choices | None:
    """What a session will choose, from row ``first`` of the logits on; None: more of its prompt is left."""
    session = work.session
    if not work.rows:
        return Choices(session, work.tree, first, session.n + 1)
    # The last prompt token is the root of an empty tree whose row has been computed already.
    return Choices(session, Tree.empty(), first, session.n + work.rows) if work.rows == session.prompt_left else None


def best_chain(proposals: Proposals, limit: int, stop_ids: frozenset[int]) -> Tree:
    """The likeliest token of each offset after the one before: a chain of at most ``limit`` nodes, ended by a stop id.

    But for transition scores the offsets do not know each other, so the estimate of survival is the product of their
    probabilities.
    """
    tokens: list[int] = []
    logprob: list[float] = []
    choice, scored = 0, len(proposals.transitions) > 0
    for offset, ids in enumerate(proposals.token_ids[:limit]):
        if not len(ids):
            break
        values = proposals.logprobs_after(offset, choice)
        if scored:  # else the first is the likeliest
            choice = int(values.argmax())
        tokens.append(int(ids[choice]))
        logprob.append(float(values[choice]))
        if tokens[-1] in stop_ids:
            break
    survival = np.exp(np.minimum(np.cumsum(logprob), 0.0))
    return Tree.chain(np.array(tokens, dtype=np.int32), survival.astype(np.float32))
