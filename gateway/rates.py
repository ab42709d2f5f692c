"""What a gateway measures of a replica at one number of sessions: how long passes take, what they commit. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

# Observations after which one counts for a third of a new one.
PASS_MEMORY = 48.0
ROUND_MEMORY = 64.0
# The tokens of a round scatter by about half of their mean.
SCATTER = 0.5
# Passes longer than this many usual ones, and so many seconds, held a pause that is not the replica's.
PAUSE_FACTOR = 5.0
PAUSE_SECONDS = 0.05
FEW = 3.0  # passes that tell how long they take


@dataclass
class Mean:
    """A mean that fades. weight: observations that it stands for."""

    memory: float
    weight: float = 0.0
    value: float = 0.0

    def add(self, total: float, count: float = 1.0) -> None:
        """``count`` more observations, which sum to ``total``."""
        kept = self.weight * (1.0 - 1.0 / self.memory) ** count
        self.value = (self.value * kept + total) / (kept + count)
        self.weight = kept + count


def doubt(rounds: float, deviations: float) -> float:
    """By which factor a mean over so many rounds may be too low, by so many standard deviations."""
    return 1.0 + deviations * SCATTER / max(rounds, 1.0) ** 0.5


@dataclass
class Rate:
    """Tokens per second over the last passes of one way of decoding. rounds: verified ones among them."""

    tokens: Mean = field(default_factory=lambda: Mean(PASS_MEMORY))
    seconds: Mean = field(default_factory=lambda: Mean(PASS_MEMORY))
    rounds: float = 0.0

    def add(self, tokens: int, seconds: float, rounds: int) -> None:
        """One more pass."""
        self.tokens.add(tokens)
        self.seconds.add(seconds)
        self.rounds += rounds

    @property
    def value(self) -> float:
        """Tokens per second; 0 before the first pass."""
        return self.tokens.value / self.seconds.value if self.seconds.value else 0.0


class Level:
    """Passes with about so many sessions.

    plain: of passes without drafts. speculating: of passes with some, since what speculates was last changed. share:
    own sessions of each class in a pass. tokens: M by class.
    """

    def __init__(self) -> None:
        self.plain = Rate()
        self.speculating = Rate()
        self._drafts = Mean(PASS_MEMORY)
        self._drafting = Mean(PASS_MEMORY)
        self.share: dict[str, Mean] = {}
        self.tokens: dict[str, Mean] = {}

    def observe(self, by_class: Mapping[str, tuple[int, int, int]], seconds: float, others: int) -> None:
        """A pass; by class: rounds that verified, their tokens, plain steps. others: other gateways' tokens."""
        rounds = sum(rounds for rounds, _, _ in by_class.values())
        tokens = others + sum(tokens + steps for _, tokens, steps in by_class.values())
        usual = self._drafts if rounds else self.plain.seconds
        if usual.weight and seconds > PAUSE_FACTOR * usual.value + PAUSE_SECONDS:
            return
        if rounds:
            self._drafts.add(seconds)
            self._drafting.add(rounds)
            self.speculating.add(tokens, seconds, rounds)
        else:
            self.plain.add(tokens, seconds, 0)
        for label in {*self.share, *by_class}:
            of_class = by_class.get(label, (0, 0, 0))
            self.share.setdefault(label, Mean(PASS_MEMORY)).add(of_class[0] + of_class[2])

    @property
    def knows_plain(self) -> bool:
        """Whether passes without drafts have been seen."""
        return self.plain.seconds.weight >= FEW

    @property
    def knows_drafts(self) -> bool:
        """Whether passes with drafts have been seen."""
        return self._drafts.weight >= FEW

    @property
    def extra_seconds(self) -> float:
        """What each session that drafts adds to a pass."""
        if not self._drafting.value:
            return 0.0
        return max(0.0, self._drafts.value - self.plain.seconds.value) / self._drafting.value

    def sessions(self, label: str) -> float:
        """Own sessions of a class in a pass."""
        return self.share[label].value if label in self.share else 0.0

    def worth(self, gains: Mapping[str, float]) -> dict[str, float]:
        """For each class how much its drafts bring for the time that they take, over what that time brings elsewhere.

        gains: M - 1 of each. With the best choice of classes the replica commits R tokens per second; a class adds
        gain tokens for b seconds, and so belongs to that choice when gain / b > R.
        """
        extra = self.extra_seconds
        tokens, seconds = self.plain.tokens.value, self.plain.seconds.value
        for label in sorted(gains, key=lambda label: -gains[label]):
            if gains[label] * seconds > tokens * extra:
                sessions = self.sessions(label)
                tokens, seconds = tokens + sessions * gains[label], seconds + sessions * extra
        usual = tokens / seconds * extra
        return {label: gain / usual if usual else (2.0 if gain > 0 else 0.0) for label, gain in gains.items()}
