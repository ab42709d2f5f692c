"""Whether a replica does better with drafts or without, as measured: committed tokens per millisecond of both ways.

What a round costs has parts that no table knows: the search, the transport, sessions that come too late for a pass,
other processes. So both ways are tried now and then, for each class of concurrency (by the number of sessions that
decode together, `concurrency.py`), and the better one is kept. Tries become rarer as long as they confirm what is in
force. Pure: time comes in as measured.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from dartspec.services.verifier.concurrency import concurrency_class

# A cycle is the time from the end of a pass to the end of the next. Cycles of one try of drafting, or fewer that have
# so many rounds of sessions; and of plain decoding, whose rate hardly varies.
TRY_DRAFTS = 6
TRY_ROUNDS = 45
TRY_PLAIN = 2
# Cycles until the first try of drafting, and of plain decoding; doubles with every try that changes nothing.
FIRST_PAUSE = 32
FIRST_PLAIN_PAUSE = 8
LONGEST_PAUSE = 1024
# Cycles a session before the first try of drafting with many where nobody expects it to pay: all their heads catch up
# for it, and their trees make a pass of many rows.
UNLIKELY_PAUSE = 32
# What tries of drafting with many sessions may cost of all tokens, as long as none of them wins.
TRIES_SHARE = 0.01
# Cycles after which a measurement counts for a third of a new one; and where a change shall be seen soon.
MEMORY = 256.0
SHORT_MEMORY = 32.0
# Cycles after which a way that was in force has proved itself.
LONG = 512
# The tokens of a round scatter by about half of their mean. Until there are so many rounds drafting gets the benefit of
# that doubt: a try that was unlucky would not be repeated for long, one that was lucky is soon corrected.
SCATTER = 0.5
ENOUGH_ROUNDS = 128.0
# Standard deviations by which lately drafting must have been worse to be stopped for that; rounds before a try is, and
# before drafting in force is. The first round of a session is no measure: its head reads the whole prompt.
CERTAIN = 2.0
FEW_ROUNDS = 2.0
SOME_ROUNDS = 8.0
# The class of so many sessions and those above must gain so much by drafting: prompts of others wait for the larger
# passes, and cycles in which a prompt is read are not compared. (Eight sessions of SmolLM2 on two AMX cores: 4% more
# tokens a cycle, but 4 to 13% fewer in all; two and four sessions had no such loss.)
MANY = 8
LEAST_GAIN = 1.06


@dataclass
class Rate:
    """Sums that fade: of tokens, of milliseconds, and of sessions over cycles."""

    memory: float = MEMORY
    tokens: float = 0.0
    milliseconds: float = 0.0
    rounds: float = 0.0

    def add(self, tokens: int, milliseconds: float, rounds: int) -> None:
        """One more cycle."""
        keep = 1.0 - 1.0 / self.memory
        self.tokens = keep * self.tokens + tokens
        self.milliseconds = keep * self.milliseconds + milliseconds
        self.rounds = keep * self.rounds + rounds

    @property
    def value(self) -> float:
        """Tokens per millisecond; there must have been a cycle."""
        return self.tokens / self.milliseconds

    def hoped(self, doubt: float) -> float:
        """What it may be by so many standard deviations, as long as there is little evidence."""
        return self.value * (1.0 + (doubt * SCATTER / self.rounds**0.5 if self.rounds < ENOUGH_ROUNDS else 0.0))


@dataclass
class _Class:
    """What is known of one class of concurrency."""

    drafting: bool  # the way in force
    many: bool = False
    plain: Rate = field(default_factory=Rate)
    drafts: Rate = field(default_factory=Rate)  # since they were begun with
    lately: Rate = field(default_factory=lambda: Rate(SHORT_MEMORY))  # the same, sooner forgotten
    left: int = FIRST_PLAIN_PAUSE  # cycles until the other way is tried
    trying: int = 0  # cycles left of a try
    tried: Rate = field(default_factory=Rate)  # all cycles of the last try of drafts
    catching_up: bool = False  # the heads of all sessions, after plain decoding; no round is like that one
    held: int = 0  # cycles for which the way in force has been so
    plain_pause: int = FIRST_PLAIN_PAUSE  # before plain decoding is tried again
    drafts_pause: int = FIRST_PAUSE  # before drafts are

    def cycle(self, drafting: bool | None, sessions: int, tokens: int, milliseconds: float) -> None:
        """A cycle is over; see `Regimes.observe`."""
        if drafting and self.catching_up:
            self.catching_up = False
        elif drafting is not None:
            for rate in (self.drafts, self.lately) if drafting else (self.plain,):
                rate.add(tokens, milliseconds, sessions)
        self.held += 1
        if self.trying:
            self.trying -= 1
            if not self.drafting:
                self.tried.add(tokens, milliseconds, sessions)
            hopeless = not self.drafting and self.lately.rounds >= FEW_ROUNDS and not self._drafts_win()
            known = not self.drafting and self.lately.rounds >= TRY_ROUNDS
            if hopeless or known or not self.trying:
                self._judge(sessions)
        elif self.drafting and not self._drafts_win():
            self._judge(sessions)
        else:
            self.left -= 1
            if self.left <= 0:
                self._try()

    def _try(self) -> None:
        self.trying = TRY_PLAIN if self.drafting else TRY_DRAFTS
        if self.drafting:
            self.plain_pause = min(2 * self.plain_pause, LONGEST_PAUSE)
        else:
            # What was measured long ago shall not outvote what comes now.
            self.drafts, self.lately, self.tried = Rate(), Rate(SHORT_MEMORY), Rate()
            self.catching_up = self.many  # few have little to catch up with, and each cycle is a sixth of their try

    def _judge(self, sessions: int) -> None:
        """Decide anew, at the end of a try or when drafting does worse than plain decoding did."""
        self.trying = 0
        win = self._drafts_win()
        if not win:
            # Drafts that did well for long may do so soon again; others are tried more and more seldom.
            if self.drafting and self.held >= LONG:
                self.drafts_pause = FIRST_PAUSE
            elif self.drafts.milliseconds:  # else nobody could draft, which proves nothing
                self.drafts_pause = min(max(2 * self.drafts_pause, self._worth_of_a_try(sessions)), LONGEST_PAUSE)
        if win != self.drafting:
            self.drafting, self.held, self.plain_pause = win, 0, FIRST_PLAIN_PAUSE
        self.left = self.plain_pause if self.drafting else self.drafts_pause

    def _worth_of_a_try(self, sessions: int) -> int:
        """Plain cycles whose tokens, times the share that tries may cost, are what the last try of drafts has lost; 0
        with few sessions."""
        if self.drafting or not self.many or not self.plain.milliseconds:
            return 0
        lost = self.tried.milliseconds * self.plain.value - self.tried.tokens
        return int(max(lost, 0.0) / (TRIES_SHARE * sessions))

    def _drafts_win(self) -> bool:
        """Whether drafting is the better way; without evidence of both, the one in force."""
        if not self.drafts.milliseconds or not self.plain.milliseconds:
            return self.drafting
        if self.drafting and self.lately.rounds < SOME_ROUNDS:
            return True
        plain = (LEAST_GAIN if self.many else 1.0) * self.plain.value
        return self.drafts.hoped(1.0) >= plain and self.lately.hoped(CERTAIN) >= plain


class Regimes:
    """The way in force by class of concurrency."""

    def __init__(self, expected: Callable[[int], bool]) -> None:
        """``expected``: whether drafting should pay with so many sessions; asked when a class is new."""
        self._expected = expected
        self._classes: dict[int, _Class] = {}

    def drafting(self, sessions: int) -> bool:
        """Whether sessions may draft now, when so many decode together."""
        found = self._class(sessions)
        return found.drafting != bool(found.trying)

    def observe(self, drafting: bool | None, sessions: int, tokens: int, milliseconds: float, away: int = 0) -> None:
        """A cycle of ``sessions`` that committed ``tokens``. drafting None: it was neither the one nor the other.

        away: sessions that decode, too, and were not in it.
        """
        self._class(sessions + away).cycle(drafting, sessions, tokens, milliseconds)

    def _class(self, sessions: int) -> _Class:
        number = concurrency_class(sessions)
        if number not in self._classes:
            # More sessions leave less to gain: where drafting has lost with fewer, it is not begun with here. Many
            # sessions begin plainly: their first try knows what an expectation here has been wrong about.
            many = number >= concurrency_class(MANY)
            lost = any(not known.drafting for fewer, known in self._classes.items() if fewer < number)
            likely = not lost and self._expected(sessions)
            drafting = likely and not many
            pause = min(UNLIKELY_PAUSE * sessions, LONGEST_PAUSE) if many and not likely else FIRST_PAUSE
            left = FIRST_PLAIN_PAUSE if drafting else pause
            self._classes[number] = _Class(drafting, many, left=left)
        return self._classes[number]
