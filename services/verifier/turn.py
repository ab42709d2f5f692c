"""A session's turn in a pass: what it brings, what it gets, and what is said about it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dartspec.services.common.types import Tree
from dartspec.services.verifier.budget import Budget, Outcome, Shape
from dartspec.services.verifier.choosing import Choices
from dartspec.services.verifier.decoder import Decoder, Work, best_chain
from dartspec.services.verifier.messages import NoDraft, Round
from dartspec.services.verifier.session import Session
from dartspec.services.verifier.tree import cut


@dataclass(eq=False)
class Turn:
    """One session in one pass. The lower part is known after it."""

    work: Work
    offered: Tree
    before: int  # tokens of the answer before the pass, which are what a failed pass leaves
    wait_ms: float
    commit: Choices | None = None  # None: more of the prompt is left
    no_draft: NoDraft | None = None
    drafted: bool = False

    @property
    def session(self) -> Session:
        """Whose turn it is."""
        return self.work.session

    def event(self, number: int, verify_ms: float, draft_ms: float, search_nodes: int) -> Round:
        """What the stream is told; ``number`` is the session's on it. There must be a commit.

        search_nodes: how many nodes are worth searching for in what was drafted.
        """
        commit, session = self.commit, self.session
        assert commit is not None
        return Round(
            session=number,
            n=len(session.tokens) - 1,
            token_ids=commit.walk.tokens,
            logprobs=commit.logprobs,
            margins=commit.margins,
            top_logprobs=commit.top_logprobs,
            accepted=commit.walk.accepted,
            nodes_offered=len(self.offered),
            nodes_verified=len(self.work.tree),
            proposals=session.proposals if self.drafted else None,
            search_nodes=search_nodes if self.drafted else 0,
            no_draft=self.no_draft,
            draft_ms=draft_ms if self.drafted else 0.0,
            verify_ms=verify_ms,
            wait_ms=self.wait_ms,
            finish=session.finish_of(session.tokens[-1]),
        )


def plan(
    decoding: Sequence[Session], reading: Sequence[tuple[Session, int]], budget: Budget, begin: float
) -> list[Turn]:
    """The turns of a pass that begins now; uses up the orders of those who decode. reading: with rows of the prompt."""
    offers = [_take_offer(session) for session in decoding]
    # The last candidate that can be committed is the one that reaches the limit.
    shallow = [cut(tree, len(tree), max_depth=session.room) for session, tree in zip(decoding, offers, strict=True)]
    forced = [session.opened.always_draft for session in decoding]
    counts = budget.admit(shallow, forced, _shape([(s, 1) for s in decoding] + list(reading)))
    works = [
        Work(session, cut(tree, count, max_depth=session.room))
        for session, tree, count in zip(decoding, shallow, counts, strict=True)
    ]
    works += [Work(session, Tree.empty(), rows) for session, rows in reading]
    offers += [Tree.empty() for _ in reading]
    return [
        Turn(work, offered, work.session.history.length, 1e3 * (begin - work.session.waiting_since))
        for work, offered in zip(works, offers, strict=True)
    ]


def _take_offer(session: Session) -> Tree:
    """The candidates that a session brings to the pass."""
    command, proposals = session.verify, session.proposals
    session.verify = session.proposals = None
    if command is None:
        session.credit -= 1
        return Tree.empty()
    if command.tree is not None:
        return command.tree
    assert proposals is not None
    return best_chain(proposals, command.chain_nodes or proposals.depth, session.enders)


def _shape(rows: Sequence[tuple[Session, int]]) -> Shape:
    total = sum(count for _, count in rows)
    return Shape(total, sum(session.n * count for session, count in rows) / max(total, 1))


def shape(turns: Sequence[Turn]) -> Shape:
    """Rows of the pass and what they attended to."""
    return _shape([(turn.session, turn.work.rows or len(turn.work.tree) + 1) for turn in turns])


def outcomes(turns: Sequence[Turn]) -> list[Outcome]:
    """What the pass did for the sessions that decoded."""
    return [
        Outcome(
            turn.session.gain,
            len(turn.offered),
            turn.work.tree,
            turn.commit.walk.accepted,
            len(turn.commit.walk.tokens),
        )
        for turn in turns
        if turn.commit is not None and not turn.work.rows
    ]


def choose_drafts(turns: Sequence[Turn], decoder: Decoder, budget: Budget, decoding: int) -> list[Turn]:
    """The turns after which the head drafts; for the others that asked for it, why it does not.

    decoding: sessions that decode, at least 1 when a turn has a commit.
    """
    chosen = []
    for turn in turns:
        if turn.commit is not None and turn.session.wants_draft:
            turn.no_draft = _no_draft(turn.session, turn.commit, decoder, budget, decoding)
            if turn.no_draft is None:
                chosen.append(turn)
    return chosen


def _no_draft(session: Session, commit: Choices, decoder: Decoder, budget: Budget, decoding: int) -> NoDraft | None:
    if commit.finished:
        return NoDraft.FINISHED
    if decoder.proposer is None:
        return NoDraft.NO_HEAD
    if session.head_cache is None:
        return NoDraft.PLAIN_ONLY
    if session.room < 2:
        return NoDraft.NEAR_LIMIT
    if not session.opened.always_draft and not budget.pays(session.gain, decoding):
        return NoDraft.DOES_NOT_PAY
    return None
