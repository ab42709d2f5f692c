"""The passes of a session: prefill, verify and commit, draft. One session at a time; no clock, no queue, no wire."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from dartspec.services.common.types import Proposals, Tree
from dartspec.services.draft.propose import DraftInput, Proposer
from dartspec.services.verifier.attention import causal_rows
from dartspec.services.verifier.sampling import choose_with_margin, log_probability
from dartspec.services.verifier.session import Session
from dartspec.services.verifier.target import Target
from dartspec.services.verifier.tree import Walk, depths, visible_rows, walk

PREFILL_ROWS = 512
# A session that decodes plainly for long hands its features to the draft head in batches of this many positions.
LAG_LIMIT = 512


@dataclass(frozen=True)
class Commit:
    """What a pass committed: the walk, each token's log-probability under the raw logits, and its margin."""

    walk: Walk
    logprobs: list[float]
    margins: list[float]
    finished: bool


class Decoder:
    """Target and draft head at work on sessions."""

    def __init__(self, target: Target, proposer: Proposer | None, top_k: int) -> None:
        self.target = target
        self.proposer = proposer
        self.top_k = top_k

    def prefill(self, session: Session) -> Commit | None:
        """Process the next chunk of the prompt; after the last one, choose the first token. None: more is left."""
        start = session.n
        chunk = session.tokens[start : start + PREFILL_ROWS]
        rows = len(chunk)
        out = self.target.forward(session.cache, chunk, np.arange(rows, dtype=np.int32), causal_rows(rows))
        session.cache.commit(range(rows))
        self._keep_features(session, out.features)
        if session.prefilling:
            return None
        # The last prompt token is the root of an empty tree whose row has been computed already.
        return self._choose(session, Tree.empty(), self.target.logits(out.hidden[-1:]), first_position=session.n)

    def verify(self, session: Session, tree: Tree) -> Commit:
        """One pass over the pending token and ``tree``; commits what the target chose. Empty: plain decoding."""
        tokens = [session.tokens[session.n], *tree.token_ids.tolist()]
        out = self.target.forward(session.cache, tokens, depths(tree), visible_rows(tree))
        commit = self._choose(session, tree, self.target.logits(out.hidden), first_position=session.n + 1)
        if not commit.finished:
            rows = commit.walk.rows
            session.cache.commit(rows)
            contiguous = rows == list(range(len(rows)))
            self._keep_features(session, out.features[: len(rows)] if contiguous else out.features[rows])
        return commit

    def draft(self, session: Session) -> Proposals:
        """What the head offers for the positions after the pending token. The session must have features waiting."""
        assert self.proposer is not None
        (proposals,) = self.proposer.propose([_draft_input(session, session.lag())], self.top_k)
        session.features.clear()
        session.proposals = proposals
        return proposals

    def _choose(self, session: Session, tree: Tree, logits: torch.Tensor, first_position: int) -> Commit:
        """Walk with ``logits`` [rows, V]; appends what is chosen to the session's tokens and history."""
        rows = logits.cpu()
        sampling, seed = session.opened.sampling, session.opened.seed
        logprobs: list[float] = []
        margins: list[float] = []

        def choose_at(row: int) -> int:
            values = rows[row].float().numpy()
            position = first_position + len(logprobs)
            token, margin = choose_with_margin(values, position, session.history, sampling, seed, session.enders)
            margins.append(margin)
            logprobs.append(log_probability(values, token))
            session.history.append(token)
            session.tokens.append(token)
            return token

        walked = walk(tree, choose_at, lambda token: session.finish_of(token) is not None)
        return Commit(walked, logprobs, margins, session.finish_of(walked.tokens[-1]) is not None)

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
