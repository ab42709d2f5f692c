"""The learned policy at work on one verifier: what its stream says goes in, each session asks what to do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from dartspec.gateway.policy import Pass, ReplicaPolicy
from dartspec.gateway.types import Mode, Opening, Round, RoundKind
from dartspec.v1 import common_pb2


class Steering:
    """Sessions of mode auto are steered; those of a forced mode count as somebody else's."""

    def __init__(self, enabled: bool) -> None:
        self._enabled = enabled
        self._policy = ReplicaPolicy()
        self._labels: dict[int, str] = {}
        self._heard_at = 0.0
        self._last: frozenset[int] = frozenset()
        self._committed = 0
        self._ended: list[int] = []

    def forget(self) -> None:
        """The verifier serves another model, or was started anew."""
        self.__init__(self._enabled)  # type: ignore[misc]

    def opened(self, session: int, opening: Opening) -> None:
        """A session begins."""
        if self._enabled and opening.mode is Mode.AUTO:
            self._labels[session] = opening.request_class
            self._policy.opened(session, opening.request_class)

    def closed(self, session: int) -> None:
        """A session has ended, perhaps by a round that is about to be heard of."""
        if session in self._labels:
            self._ended.append(session)

    def speculates(self, session: int, now: float) -> bool:
        """Whether the session's drafting is left to the verifier now; else it decodes plainly."""
        return session not in self._labels or self._policy.speculates(session, now)

    def plain_classes(self) -> int:
        """Classes that are kept from drafting at the present load."""
        return sum(self._policy.plainly(label) for label in set(self._labels.values()))

    def heard(self, rounds: Iterable[tuple[int, Round]], load: common_pb2.LoadReport, now: float) -> None:
        """One message of the verifier: the rounds of this gateway's sessions in one pass."""
        if self._labels:
            self._observe(rounds, load, now)
        for session in self._ended:
            if self._labels.pop(session, None) is not None:
                self._policy.closed(session)
        self._ended.clear()

    def _observe(self, rounds: Iterable[tuple[int, Round]], load: common_pb2.LoadReport, now: float) -> None:
        by_class: dict[str, tuple[int, int, int]] = {}
        kinds: Counter[RoundKind] = Counter()
        tokens, sessions = 0, []
        for session, round in rounds:
            kinds[round.kind] += 1
            sessions.append(session)
            label = self._labels.get(session)
            if label is None or round.kind is RoundKind.OPEN:
                continue
            drafted = round.kind is RoundKind.VERIFY
            own = by_class.get(label, (0, 0, 0))
            tokens += len(round.token_ids)
            by_class[label] = (own[0] + drafted, own[1] + len(round.token_ids) * drafted, own[2] + (not drafted))
        others = max(0, load.committed_tokens - self._committed - tokens) if self._committed else 0
        # A pass lasts from one message to the next, provided that sessions went on and no prompt was read meanwhile.
        went_on = not self._last.isdisjoint(sessions) and not kinds[RoundKind.OPEN] and not load.waiting_sessions
        if by_class:
            seconds = now - self._heard_at if went_on else None
            self._policy.observe(Pass(load.running_sessions or len(sessions), seconds, by_class, others), now)
        self._committed = load.committed_tokens
        self._heard_at = now
        self._last = frozenset(sessions)
