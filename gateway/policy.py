"""Which classes of requests speculate on a replica, learned from what its passes commit and how long they take. Pure.

The verifier decides pass by pass, and about each session by what that session has shown. What sessions of a class have
shown holds for the next ones too: that is what is learned here. The gateway can only take drafts away; where it leaves
a session to the verifier, the verifier may still decode plainly.

A session that drafts makes the pass longer for all that share it, so no class can be judged by its own speed: each
would gain what all pay for. What counts is the rate of the whole replica. Of N sessions let k draft: a pass takes about
a + b k, and each that drafts commits M tokens instead of one. For each number of sessions (by its bits) a and b are
measured, M for each class, and a class speculates while M - 1 tokens for b seconds are better than what the replica
commits in that time otherwise. The measured rate has the last word: when it falls below that of plain decoding, the
class that gains least stops. The other way is tried now and then, by few sessions and more and more seldom, so that
both stay known.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dartspec.gateway.rates import ROUND_MEMORY, Level, Mean, Rate, doubt
from dartspec.gateway.switches import Switches

ENOUGH_ROUNDS = 4.0  # of a class, before it is judged
STOP_BELOW, BEGIN_ABOVE = 0.95, 1.05  # worth of drafts; in between nothing changes
CERTAIN = 1.5  # standard deviations by which the measured rate must be below plain decoding's
FEWEST_ROUNDS = 8.0  # before it counts
PRESENT = 0.25  # of the most frequent class's sessions: a class that the measured rate speaks of
REFUSED_SECONDS = 5.0  # for which a class that did badly is not begun with again
TRY_PASSES = 4
TRY_SHARE = 1 / 32  # of the sessions take part in a try of drafting
TRY_SECONDS = 5.0  # after which a try that came to nothing ends
FIRST_PAUSE, LONGEST_PAUSE = 3.0, 60.0  # seconds between tries; doubled by each


@dataclass(frozen=True)
class Pass:
    """One pass of a replica as a gateway saw it.

    sessions: that decode there, other gateways' included. seconds: since the pass before; None where it says nothing,
    because work had stopped or a prompt was read. by_class: rounds that verified candidates, tokens of these, and plain
    steps. others: tokens that the pass committed for other gateways.
    """

    sessions: int
    seconds: float | None
    by_class: Mapping[str, tuple[int, int, int]]
    others: int = 0


@dataclass
class _Choice:
    """What is in force at one number of sessions.

    new: nothing was decided yet, so that only tries draft. plainly: classes that do not speculate. trying: "plain" for
    all, "drafts" for a few, or nothing. passes: of the try.
    """

    new: bool
    trying: str
    since: float
    level: Level = field(default_factory=Level)
    plainly: set[str] = field(default_factory=set)
    passes: int = 0
    pause: float = FIRST_PAUSE
    try_at: float = 0.0
    refused_until: dict[str, float] = field(default_factory=dict)

    def try_other(self, trying: str, now: float) -> None:
        self.trying, self.passes, self.since = trying, 0, now

    def end_try(self, now: float) -> None:
        self.trying = ""
        self.try_at = now + self.pause
        self.pause = min(2 * self.pause, LONGEST_PAUSE)

    def change(self, label: str, plainly: bool, now: float) -> None:
        (self.plainly.add if plainly else self.plainly.discard)(label)
        self.level.speculating = Rate()
        self.pause = FIRST_PAUSE
        self.try_at = now + self.pause


class ReplicaPolicy:
    """Of one replica and one model. Times in seconds of any one clock."""

    def __init__(self) -> None:
        self._choices: dict[int, _Choice] = {}
        self._reported = 0
        self._tokens: dict[str, Mean] = {}  # M by class, whatever the number of sessions
        self._labels: dict[int, str] = {}
        self._switches: dict[int, Switches] = {}
        self._triers: set[int] = set()

    def opened(self, session: int, label: str) -> None:
        """A session that is left to this policy begins."""
        self._labels[session] = label

    def closed(self, session: int) -> None:
        """It has ended."""
        self._labels.pop(session, None)
        self._switches.pop(session, None)
        self._triers.discard(session)

    def speculates(self, session: int, now: float) -> bool:
        """Whether the session may draft in its next round."""
        wanted = self._wanted(session)
        if session not in self._switches:
            self._switches[session] = Switches(wanted)
        return self._switches[session].want(wanted, now)

    def plainly(self, label: str) -> bool:
        """Whether a class has been found to do better without drafts, at the present number of sessions."""
        choice = self._choices.get(self._bits)
        return choice is not None and label in choice.plainly

    def observe(self, one: Pass, now: float) -> None:
        """A pass is over."""
        self._reported = one.sessions
        choice = self._choice(now)
        for label, (rounds, tokens, _) in one.by_class.items():
            for means in (self._tokens, choice.level.tokens) if rounds else ():
                means.setdefault(label, Mean(ROUND_MEMORY)).add(tokens, rounds)
        if one.seconds is not None:
            choice.level.observe(one.by_class, one.seconds, one.others)
            self._go_on(choice, any(rounds for rounds, _, _ in one.by_class.values()), now)

    @property
    def _bits(self) -> int:
        """Class of the number of sessions; those that the next report will count are counted now."""
        return max(self._reported, len(self._labels), 1).bit_length()

    def _wanted(self, session: int) -> bool:
        choice = self._choices.get(self._bits)
        if session in self._triers or (choice is None and not self._choices):
            return True
        if choice is None:
            return False
        return choice.trying != "plain" and not choice.new and self._labels[session] not in choice.plainly

    def _choice(self, now: float) -> _Choice:
        """At the present number of sessions; a new one begins with plain passes, unless nothing is known at all."""
        if self._bits not in self._choices:
            known = any(choice.level.knows_drafts for choice in self._choices.values())
            self._choices[self._bits] = _Choice(known, "plain" if known else "", now, try_at=now + FIRST_PAUSE)
        return self._choices[self._bits]

    def _go_on(self, choice: _Choice, drafts: bool, now: float) -> None:
        """Count the passes of a try, decide, and begin the next try when it is due."""
        level = choice.level
        if choice.trying:
            choice.passes += drafts == (choice.trying == "drafts")
            if choice.passes < TRY_PASSES and now - choice.since < TRY_SECONDS:
                return
            choice.end_try(now)
            self._triers.clear()
        known = level.knows_plain and level.knows_drafts
        if known:
            self._decide(choice, now)
        if now >= choice.try_at or (choice.new and level.knows_plain):
            self._begin_try(choice, now)

    def _begin_try(self, choice: _Choice, now: float) -> None:
        """Of plain decoding where all draft or it is not known, else of drafting by a few sessions that do not."""
        free = [session for session, switches in self._switches.items() if switches.may_try(now)]
        plain = [session for session in free if not self._switches[session].drafting]
        if not choice.level.knows_plain or (choice.level.knows_drafts and not plain):
            if len(free) == len(self._switches) > 0:  # else it would not be a pass without drafts
                choice.try_other("plain", now)
            return
        if not plain:  # the verifier drafts nobody
            choice.end_try(now)
            return
        plain.sort(key=lambda session: self._mean(choice, self._labels[session]).weight)  # what is known least
        self._triers = set(plain[: max(1, round(TRY_SHARE * len(self._labels)))])
        choice.try_other("drafts", now)

    def _decide(self, choice: _Choice, now: float) -> None:
        """Change what has been found wrong."""
        level = choice.level
        choice.new = False
        means = {label: self._mean(choice, label) for label in self._tokens}
        gains = {
            label: mean.value * doubt(mean.weight, 1.0 if mean.weight < ROUND_MEMORY / 2 else 0.0) - 1.0
            for label, mean in means.items()
            if mean.weight >= ENOUGH_ROUNDS
        }
        measured = level.speculating
        if measured.rounds >= FEWEST_ROUNDS and measured.value * doubt(measured.rounds, CERTAIN) < level.plain.value:
            most = max(share.value for share in level.share.values())
            blamed = [c for c in gains if c not in choice.plainly and level.sessions(c) >= PRESENT * most]
            if blamed:
                label = min(blamed, key=gains.__getitem__)
                choice.change(label, True, now)
                choice.refused_until[label] = now + REFUSED_SECONDS
                return
        for label, worth in level.worth(gains).items():
            if label not in choice.plainly and worth < STOP_BELOW:
                choice.change(label, True, now)
            elif label in choice.plainly and worth > BEGIN_ABOVE and now >= choice.refused_until.get(label, 0.0):
                choice.change(label, False, now)

    def _mean(self, choice: _Choice, label: str) -> Mean:
        """M of a class at this number of sessions, or at any as long as that is not known."""
        mean = choice.level.tokens.get(label)
        if mean is None or mean.weight < ENOUGH_ROUNDS:
            mean = self._tokens.get(label)
        return mean or Mean(ROUND_MEMORY)
