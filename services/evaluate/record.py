"""Answers of the target, and what its head proposes at every position of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from dartspec.services.common.errors import DartspecError
from dartspec.services.common.types import Proposals, Sampling, Tree
from dartspec.services.verifier.admission import Admission
from dartspec.services.verifier.commit import draft_input
from dartspec.services.verifier.decoder import Decoder, Work
from dartspec.services.verifier.messages import Open
from dartspec.services.verifier.session import Session


@dataclass
class Recording:
    """One answer. Position contract as everywhere: at n, tokens[0..n-1] are processed and tokens[n] is pending.

    proposals: whether the target's noise was shared -> proposals at n = prompt_length, prompt_length + 1, ..., as far
    as a verifier would offer any. stop_ids: what ends a path of a tree.
    """

    prompt_length: int
    stop_ids: frozenset[int]
    tokens: list[int] = field(default_factory=list)
    proposals: dict[bool, list[Proposals]] = field(default_factory=dict)

    @property
    def positions(self) -> range:
        """Values of n with proposals."""
        return range(self.prompt_length, self.prompt_length + len(next(iter(self.proposals.values()))))


@dataclass(frozen=True)
class Ask:
    """An answer to record. share_noise: the kinds of draft to keep, those that follow the target's noise and others."""

    prompt: Sequence[int]
    sampling: Sampling
    seed: int
    share_noise: tuple[bool, ...]


def record(
    decoder: Decoder, admission: Admission, asks: Sequence[Ask], on_answer: Callable[[], object] = lambda: None
) -> list[Recording]:
    """Answer plainly, as many at a time as ``admission`` has sessions, with a draft after every token.

    What the head sees and what the target chooses is what a verifier has at the same positions, to rounding. Sharing
    the noise changes proposals, not answers, so both kinds come from one pass of the head.
    Raises InvalidArgument for a prompt that the context has no room for.
    """
    assert decoder.proposer is not None
    recordings: list[Recording] = []
    waiting = deque(asks)
    active: list[tuple[Recording, Session]] = []
    while waiting or active:
        while waiting and len(active) < admission.max_sessions:
            active.append(_opened(decoder, admission, waiting.popleft()))
            recordings.append(active[-1][0])
        offering = [pair for pair in active if pair[1].room >= 2 and not _over(pair[1])]
        if offering:
            _draft(decoder, offering)
        for pair in [pair for pair in active if _over(pair[1])]:
            recording, session = pair
            active.remove(pair)
            recording.tokens = list(session.tokens)
            admission.release(session)
            on_answer()
        if active:
            for result in decoder.step([Work(session, Tree.empty()) for _, session in active]):
                if isinstance(result, DartspecError):
                    raise result
    return recordings


def _opened(decoder: Decoder, admission: Admission, ask: Ask) -> tuple[Recording, Session]:
    order = Open(0, list(ask.prompt), len(ask.prompt), ask.sampling, ask.seed, 0, "evaluation", True, False)
    session = admission.open(order, decoder)
    while decoder.prefill(session) is None:
        continue
    return Recording(len(ask.prompt), session.enders, proposals={kind: [] for kind in ask.share_noise}), session


def _over(session: Session) -> bool:
    return session.finish_of(session.tokens[-1]) is not None


def _draft(decoder: Decoder, offering: Sequence[tuple[Recording, Session]]) -> None:
    proposer = decoder.proposer
    assert proposer is not None
    inputs = [draft_input(session, share_noise=True) for _, session in offering]
    logits = proposer.logits(inputs)
    for _, session in offering:
        assert session.features is not None
        session.features.count = 0
    for shared in (True, False):
        rows = [row for row, (recording, _) in enumerate(offering) if shared in recording.proposals]
        if rows:
            coins = [inputs[row].coin if shared else None for row in rows]
            part = logits if len(rows) == len(offering) else logits[rows]
            for row, proposals in zip(rows, proposer.top(part, decoder.top_k, coins), strict=True):
                offering[row][0].proposals[shared].append(proposals)


def hit_rates(recordings: Sequence[Recording], shared: bool, among: int) -> list[float]:
    """By offset t from 1: how often x[n+t] is among the first ``among`` candidates, over all positions n with one."""
    depth = max((found[0].depth for r in recordings if (found := r.proposals[shared])), default=0)
    hits, seen = np.zeros(depth), np.zeros(depth)
    for recording in recordings:
        for n, proposals in zip(recording.positions, recording.proposals[shared], strict=True):
            for offset, (ids, truth) in enumerate(zip(proposals.token_ids, recording.tokens[n + 1 :], strict=False)):
                hits[offset] += truth in ids[:among]
                seen[offset] += 1
    return (hits / np.maximum(seen, 1)).tolist()
