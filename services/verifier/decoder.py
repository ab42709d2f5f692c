"""One step of the engine: a target pass over the rows of many sessions, the walks, a draft. No queue or wire."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from dartspec.services.common.errors import DartspecError
from dartspec.services.common.types import Int32, Proposals, TopTokens, Tree
from dartspec.services.draft.propose import Proposer
from dartspec.services.verifier.attention import Segment, causal_rows
from dartspec.services.verifier.commit import Kept, draft_input, keep
from dartspec.services.verifier.draw_together import Drawn, Toss, draw_of_rows
from dartspec.services.verifier.logprobs import log_probability, top_tokens
from dartspec.services.verifier.rows import LogitRows
from dartspec.services.verifier.sampling import choose_with_margin, toss_of
from dartspec.services.verifier.scheduler import PREFILL_ROWS
from dartspec.services.verifier.session import Session
from dartspec.services.verifier.target import Target
from dartspec.services.verifier.tree import Walk, depths, visible_rows, walk

# Depth of a row without a tree, and what it sees.
_ALONE = depths(Tree.empty()), visible_rows(Tree.empty())


class Work(NamedTuple):
    """What a session does in a pass: the next ``rows`` tokens of its prompt, or, with ``rows`` 0, verify ``tree``."""

    session: Session
    tree: Tree
    rows: int = 0


class Commit(NamedTuple):
    """What a pass committed: the walk, each token's log-probability under the raw logits, and its margin.

    top_logprobs: the likeliest tokens where each was chosen; empty unless asked for.
    """

    walk: Walk
    logprobs: list[float]
    margins: list[float]
    top_logprobs: list[TopTokens]
    finished: bool


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

    def step(self, works: Sequence[Work]) -> list[Commit | DartspecError | None]:
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
        firsts = list(accumulate(map(len, wanted), initial=0))
        # The row after which a session's first token comes is looked at in any case.
        choosing = [(first, work) for first, part, work in zip(firsts, wanted, works, strict=False) if len(part)]
        table = LogitRows(logits, [first for first, _ in choosing])
        drawn = _drawn_together(choosing, table)
        results: list[Commit | DartspecError | None] = []
        kept: list[Kept] = []
        for work, start, first in zip(works, starts, firsts, strict=False):
            try:
                commit = _chosen(work, table, first, drawn.get(first))
                results.append(commit)
                stay = range(work.rows) if commit is None or work.rows else commit.walk.rows
                kept.append(Kept(work.session, start, stay))
            except DartspecError as error:
                work.session.sound = False
                results.append(error)
        try:
            keep(kept, out.features, self.proposer)
        except Exception:
            for each in kept:
                each.session.sound = False
            raise
        return results

    def prefill(self, session: Session) -> Commit | None:
        """The next chunk of one session's prompt; after the last one, the first token. None: more is left."""
        return self._alone(Work(session, Tree.empty(), min(PREFILL_ROWS, session.prompt_left)))

    def verify(self, session: Session, tree: Tree) -> Commit:
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

    def _alone(self, work: Work) -> Commit | None:
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


def _drawn_together(choosing: Sequence[tuple[int, Work]], table: LogitRows) -> dict[int, Drawn]:
    """By row of the table, the first draws of all sessions that draw: together they take less time."""
    rows: dict[int, Toss] = {}
    for first, work in choosing:
        session = work.session
        sampling, seed = session.opened.sampling, session.opened.seed
        toss = toss_of(table[first], _first_position(work), session.history, sampling, seed, session.enders)
        if toss is not None:
            rows[first] = toss
    drawn = draw_of_rows([table[first] for first in rows], list(rows.values()))
    return {first: found for first, found in zip(rows, drawn, strict=True) if found is not None}


def _first_position(work: Work) -> int:
    """Of the first token that a work chooses."""
    return work.session.n + (work.rows or 1)


def _chosen(work: Work, table: LogitRows, first: int, drawn: Drawn | None) -> Commit | None:
    """What the rows of one session's work, from ``first`` of the table on, choose; None: more of its prompt is left."""
    if work.rows and work.rows < work.session.prompt_left:
        return None
    # The last prompt token is the root of an empty tree whose row has been computed already.
    tree = Tree.empty() if work.rows else work.tree
    return _choose(work.session, tree, table, first, _first_position(work), drawn)


def _choose(
    session: Session,
    tree: Tree,
    table: LogitRows,
    first: int,
    first_position: int,
    drawn: Drawn | None,
) -> Commit:
    """Walk the tree, whose root has row ``first`` of the table; what is chosen goes to the session's tokens, too.

    drawn: the draw of the first token, if it has been made already.
    """
    sampling, seed = session.opened.sampling, session.opened.seed
    logprobs: list[float] = []
    margins: list[float] = []
    top: list[TopTokens] = []

    def choose_at(row: int) -> int:
        logits = table[first + row]
        position = first_position + len(logprobs)
        ahead = None if row else drawn
        token, margin = choose_with_margin(logits, position, session.history, sampling, seed, session.enders, ahead)
        margins.append(margin)
        normalizer = logits.summary.log_normalizer
        logprobs.append(log_probability(logits.logit(token), normalizer))
        if sampling.top_logprobs:
            top.append(top_tokens(logits.values, sampling.top_logprobs, normalizer))
        session.history.append(token)
        session.tokens.append(token)
        return token

    walked = walk(tree, choose_at, lambda token: session.finish_of(token) is not None)
    return Commit(walked, logprobs, margins, top, session.finish_of(walked.tokens[-1]) is not None)


def best_chain(proposals: Proposals, limit: int, stop_ids: frozenset[int]) -> Tree:
    """The likeliest token of each offset after the one before: a chain of at most ``limit`` nodes, ended by a stop id.

    But for transition scores the offsets do not know each other, so the estimate of survival is the product of their
    probabilities.
    """
    tokens: list[int] = []
    logprob: list[float] = []
    choice = 0
    for offset, ids in enumerate(proposals.token_ids[:limit]):
        if not len(ids):
            break
        values = proposals.logprobs_after(offset, choice)
        choice = int(values.argmax())
        tokens.append(int(ids[choice]))
        logprob.append(float(values[choice]))
        if tokens[-1] in stop_ids:
            break
    survival = np.exp(np.minimum(np.cumsum(logprob), 0.0))
    return Tree.chain(np.array(tokens, dtype=np.int32), survival.astype(np.float32))
