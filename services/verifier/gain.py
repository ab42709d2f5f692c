"""What drafting has brought to one session, and when it tries again."""

from __future__ import annotations

from dataclasses import dataclass

# Weight of the newest round in the running means.
NEW = 0.1
# Rounds in which a new session drafts whatever they bring, since its acceptance is not known; and in a later try.
TRIAL_ROUNDS = 4
RETRY_ROUNDS = 2
# Rounds of one session that say as much about it as all sessions together do: tokens of a round scatter by half of
# their mean, so a few unlucky rounds in a row are common.
USUAL_ROUNDS = 8.0
# Tokens that a session decodes plainly before it tries again; doubles with every failure.
FIRST_PAUSE = 16
LONGEST_PAUSE = 256


@dataclass
class Gain:
    """Tokens and expected time of a session's rounds."""

    rounds: int = 0  # since the last try began
    committed: float = 0.0  # running mean of tokens a round
    pass_ms: float = 0.0  # running mean of a round's pass by the cost table
    plain_ms: float = 0.0  # the same had nobody drafted
    trial: int = TRIAL_ROUNDS  # rounds still to make before the gain counts
    pause: int = 0  # chances still to let pass
    next_pause: int = FIRST_PAUSE

    def wants_chance(self) -> bool:
        """Whether the session's pause is over; called once for every chance to draft."""
        if self.pause:
            self.pause -= 1
            if self.pause:
                return False
            self.rounds, self.trial = 0, RETRY_ROUNDS
        return True

    def expected(self, usual: float) -> float:
        """Tokens of the session's next round, where all sessions' rounds commit ``usual`` in the mean."""
        known = min(self.rounds, 1.0 / NEW)
        return (USUAL_ROUNDS * usual + known * self.committed) / (USUAL_ROUNDS + known)

    def enough(self, drafting_ms: float, plain_ms: float, usual: float) -> bool:
        """Whether to go on when a round takes so long and plain steps take so long; begins a pause if not."""
        if self.trial:
            return True
        if self.expected(usual) * plain_ms >= drafting_ms:
            self.next_pause = FIRST_PAUSE
            return True
        self.pause, self.next_pause = self.next_pause, min(2 * self.next_pause, LONGEST_PAUSE)
        return False

    def add(self, committed: int, pass_ms: float, plain_ms: float) -> None:
        """A round committed so many tokens in a pass of this cost, which would have had that one without trees."""
        self.rounds += 1
        self.trial = max(self.trial - 1, 0)
        weight = max(NEW, 1.0 / self.rounds)  # a plain mean at first
        self.committed += weight * (committed - self.committed)
        self.pass_ms += weight * (pass_ms - self.pass_ms)
        self.plain_ms += weight * (plain_ms - self.plain_ms)
