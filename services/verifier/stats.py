"""What the engine did and how fast, for the load report and the metrics.

The engine's thread writes, once a step and at every failure; any thread may read. Nothing here looks at a clock.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from dartspec.services.common.errors import DartspecError, Evicted
from dartspec.services.common.histogram import Histogram
from dartspec.services.common.types import Int32
from dartspec.services.verifier.admission import Admission
from dartspec.services.verifier.measures import BOUNDS, DepthCounts, Mean, Rate
from dartspec.services.verifier.messages import Load
from dartspec.services.verifier.open_sessions import OpenSessions
from dartspec.services.verifier.turn import Turn


@dataclass(frozen=True)
class Figures:
    """What the metrics show beside the load report. Times in seconds.

    passes, drafts, own: of each step, the target's pass up to its logits on the host, the draft if there was one, and
    the rest. first_tokens: from a session's opening to its first token. failures: sessions by gRPC code.
    """

    prompt_tokens: int
    passes: Histogram
    drafts: Histogram
    own: Histogram
    first_tokens: Histogram
    failures: dict[str, int]
    evictions: int


class Stats:
    """Counts what the engine says."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._committed = self._rounds = self._prompt_tokens = self._evictions = 0
        self._depths = DepthCounts()
        self._rate = Rate()
        self._pass, self._draft, self._accepted = Mean(), Mean(), Mean()
        self._passes, self._drafts, self._own, self._first_tokens = (Histogram(BOUNDS) for _ in range(4))
        self._failures: Counter[str] = Counter()

    def stepped(
        self,
        turns: Sequence[Turn],
        depths: Sequence[Int32],
        pass_seconds: float,
        draft_seconds: float | None,
        first_tokens: Sequence[float],
        busy_seconds: float,
    ) -> None:
        """A step up to its messages.

        turns: those that went well. depths: of the rows of each one's tree, the root included. first_tokens: seconds
        after which sessions got their first token. busy_seconds: time with work since the step before.
        """
        walks = [turn.commit.walk for turn in turns if turn.commit is not None]
        rounds = [
            (turn.commit.walk.accepted, depth)
            for turn, depth in zip(turns, depths, strict=True)
            if turn.commit is not None and len(turn.work.tree)
        ]
        committed = sum(len(walk.tokens) for walk in walks)
        with self._lock:
            self._committed += committed
            self._prompt_tokens += sum(turn.work.rows for turn in turns)
            self._rate.add(committed, busy_seconds)
            self._pass.add(pass_seconds)
            self._passes.add(pass_seconds)
            if draft_seconds is not None:
                self._draft.add(draft_seconds)
                self._drafts.add(draft_seconds)
            for seconds in first_tokens:
                self._first_tokens.add(seconds)
            if rounds:
                self._rounds += len(rounds)
                self._accepted.add(self._depths.add(rounds) / len(rounds))

    def ended(self, own_seconds: float, busy_seconds: float) -> None:
        """A step is over, its messages included, which took ``busy_seconds``."""
        with self._lock:
            self._own.add(own_seconds)
            self._rate.add(0, busy_seconds)

    def failed(self, error: DartspecError) -> None:
        """A session failed."""
        with self._lock:
            self._failures[error.code.name] += 1
            self._evictions += isinstance(error, Evicted)

    def load(self, sessions: OpenSessions, admission: Admission) -> Load:
        """The load report now. On the engine's thread, which owns what is open."""
        # A session that has prompt left can always go on.
        left = [session.prompt_left for session in sessions.ready.values()]
        waiting = len(left) - left.count(0)
        with self._lock:
            return Load(
                sessions=len(sessions),
                queued=len(left),
                kv_used=admission.kv_used,
                kv_capacity=admission.kv_positions,
                committed_tokens=self._committed,
                rounds=self._rounds,
                accepted_tokens=self._depths.accepted_tokens,
                waiting_sessions=waiting,
                running_sessions=len(sessions) - waiting,
                prompt_tokens_left=sum(left),
                committed_tokens_per_second=self._rate.value,
                pass_ms=1e3 * self._pass.value,
                draft_ms=1e3 * self._draft.value,
                accepted_per_round=self._accepted.value,
                verified_per_depth=self._depths.verified,
                accepted_per_depth=self._depths.accepted,
                draining=sessions.draining,
            )

    def figures(self) -> Figures:
        """What the metrics show beside the load report."""
        with self._lock:
            return Figures(
                prompt_tokens=self._prompt_tokens,
                passes=self._passes.copy(),
                drafts=self._drafts.copy(),
                own=self._own.copy(),
                first_tokens=self._first_tokens.copy(),
                failures=dict(self._failures),
                evictions=self._evictions,
            )
