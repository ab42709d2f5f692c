"""One step of the engine: a target pass over the rows of many sessions, the walks, a draft. No queue or wire."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from dartspec.services.common.errors import DartspecError
from dartspec.services.common.types import Int32, Proposals, TopTokens, Tree
from dartspec.services.draft.propose import DraftInput, Proposer
from dartspec.services.verifier.attention import Segment, causal_rows
from dartspec.services.verifier.logprobs import log_normalizer, log_probability, top_tokens
from dartspec.services.verifier.sampling import choose_with_margin
from dartspec.services.verifier.scheduler import PREFILL_ROWS
from dartspec.services.verifier.session import Session
from dartspec.services.verifier.target import Target
from dartspec.services.verifier.tree import Walk, depths, visible_rows, walk

# A session that decodes plainly for long hands its features to the draft head in batches of this many positions.
LAG_LIMIT = 512


@dataclass(frozen=True)
class Work:
    """What a session does in a pass: the next ``rows`` tokens of its prompt, or, with ``rows`` 0, verify ``tree``."""

    session: Session
    tree: Tree
    rows: int = 0


@dataclass(frozen=True)
class Commit:
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
    array for each of its works.
    """

    def __init__(self, target: Target, proposer: Proposer | None, top_k: int) -> None:
        self.target = target
        self.proposer = proposer
        self.top_k = top_k
        self.pass_seconds = 0.0
        self.depths: list[Int32] = []

    def step(self, works: Sequence[Work]) -> list[Commit | DartspecError | None]:
        """One pass for all of ``works``. For each what it committed, None when more of its prompt is left, or why its
        session failed; the pass itself may raise, and then nothing is committed for anybody."""
        segments = [_segment(work) for work in works]
        self.depths = [segment.depth for segment in segments]
        begin = time.perf_counter()
        out = self.target.forward(segments)
        starts = np.cumsum([0, *(segment.rows for segment in segments)]).tolist()
        wanted = [_rows_with_logits(work, start) for work, start in zip(works, starts, strict=False)]
        rows = [row for part in wanted for row in part]
        hidden = out.hidden if len(rows) == len(out.hidden) else out.hidden[rows]
        logits = self.target.host_logits(hidden) if rows else hidden  # the step's one copy to the host
        self.pass_seconds = time.perf_counter() - begin
        results: list[Commit | DartspecError | None] = []
        at = 0
        for work, start, part in zip(works, starts, wanted, strict=False):
            try:
                results.append(self._finish(work, out.features, start, logits[at : at + len(part)]))
            except DartspecError as error:
                results.append(error)
            at += len(part)
        return results

    def prefill(self, session: Session) -> Commit | None:
        """The next chunk of one session's prompt; after the last one, the first token. None: more is left."""
        return self._alone(Work(session, Tree.empty(), min(PREFILL_ROWS, session.prompt_left)))

    def verify(self, session: Session, tree: Tree) -> Commit:
        """A pass over one session's pending token and ``tree``. Empty: plain decoding."""
        commit = self._alone(Work(session, tree))
        assert commit is not None
        return commit

    def draft(self, sessions: Sequence[Session]) -> None:
        """Set what the head offers for the positions after the pending token of each session, all in one pass."""
        assert self.proposer is not None
        inputs = [_draft_input(session, session.lag()) for session in sessions]
        for session, proposals in zip(sessions, self.proposer.propose(inputs, self.top_k), strict=True):
            session.features.clear()
            session.proposals = proposals

    def _alone(self, work: Work) -> Commit | None:
        (result,) = self.step([work])
        if isinstance(result, DartspecError):
            raise result
        return result

    def _finish(self, work: Work, features: torch.Tensor, start: int, logits: torch.Tensor) -> Commit | None:
        """Choose tokens for one session and keep the rows that led to them."""
        session = work.session
        if work.rows:
            session.cache.commit(range(work.rows))
            self._keep_features(session, features[start : start + work.rows])
            if session.prefilling:
                return None
            # The last prompt token is the root of an empty tree whose row has been computed already.
            return _choose(session, Tree.empty(), logits, first_position=session.n)
        commit = _choose(session, work.tree, logits, first_position=session.n + 1)
        if not commit.finished:
            rows = commit.walk.rows
            session.cache.commit(rows)
            contiguous = rows == list(range(len(rows)))
            chosen = slice(start, start + len(rows)) if contiguous else [start + row for row in rows]
            self._keep_features(session, features[chosen])
        return commit

    def _keep_features(self, session: Session, features: torch.Tensor) -> None:
        if session.head_cache is None or self.proposer is None:
            return
        session.features.append(features)
        # While the prompt's end is not reached, the token after the last position may be unknown.
        if not session.prefilling and session.lag() >= LAG_LIMIT and len(session.tokens) > session.n:
            # All but the last position, from which the next draft starts.
            entry = _draft_input(session, session.lag() - 1)
            last = session.features[-1][-1:]
            self.proposer.append([entry])
            session.features[:] = [last]


def _segment(work: Work) -> Segment:
    session, tree = work.session, work.tree
    if work.rows:
        chunk = session.tokens[session.n : session.n + work.rows]
        return Segment(session.cache, chunk, np.arange(work.rows, dtype=np.int32), causal_rows(work.rows))
    tokens = [session.tokens[session.n], *tree.token_ids.tolist()]
    return Segment(session.cache, tokens, depths(tree), visible_rows(tree))


def _rows_with_logits(work: Work, start: int) -> range:
    """Rows of the pass whose logits may choose a token: all of a tree, the last one of a prompt."""
    if not work.rows:
        return range(start, start + len(work.tree) + 1)
    return range(start + work.rows - 1, start + work.rows) if work.rows == work.session.prompt_left else range(0)


def _choose(session: Session, tree: Tree, logits: torch.Tensor, first_position: int) -> Commit:
    """Walk with ``logits`` [rows, V] on the host; appends what is chosen to the session's tokens and history."""
    sampling, seed = session.opened.sampling, session.opened.seed
    logprobs: list[float] = []
    margins: list[float] = []
    top: list[TopTokens] = []

    def choose_at(row: int) -> int:
        values = logits[row].float().numpy()
        position = first_position + len(logprobs)
        token, margin = choose_with_margin(values, position, session.history, sampling, seed, session.enders)
        margins.append(margin)
        normalizer = log_normalizer(values)
        logprobs.append(log_probability(float(values[token]), normalizer))
        if sampling.top_logprobs:
            top.append(top_tokens(values, sampling.top_logprobs, normalizer))
        session.history.append(token)
        session.tokens.append(token)
        return token

    walked = walk(tree, choose_at, lambda token: session.finish_of(token) is not None)
    return Commit(walked, logprobs, margins, top, session.finish_of(walked.tokens[-1]) is not None)


def _draft_input(session: Session, rows: int) -> DraftInput:
    """The first ``rows`` positions that the draft head has not seen, and the tokens that follow each."""
    assert session.head_cache is not None
    start = session.head_cache.length
    following = torch.tensor(session.tokens[start + 1 : start + rows + 1])
    features = session.features[0] if len(session.features) == 1 else torch.cat(session.features)
    return DraftInput(session.head_cache, features[:rows], following)


def best_chain(proposals: Proposals, limit: int, stop_ids: frozenset[int]) -> Tree:
    """The likeliest token of each offset as a chain of at most ``limit`` nodes, ended by a stop id.

    The offsets do not know each other, so the estimate of survival is the product of their probabilities.
    """
    tokens: list[int] = []
    logprob: list[float] = []
    for ids, values in zip(proposals.token_ids[:limit], proposals.logprobs[:limit], strict=True):
        if not len(ids):
            break
        tokens.append(int(ids[0]))
        logprob.append(float(values[0]))
        if tokens[-1] in stop_ids:
            break
    survival = np.exp(np.minimum(np.cumsum(logprob), 0.0))
    return Tree.chain(np.array(tokens, dtype=np.int32), survival.astype(np.float32))
