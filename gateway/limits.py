"""How long a request may wait, and for what."""

from __future__ import annotations

from dataclasses import dataclass

from dartspec.services.common.errors import DeadlineExceeded, Unavailable


class Stalled(Unavailable):
    """A verifier let a time limit pass; the message names the limit."""


@dataclass(frozen=True)
class Limits:
    """Seconds; each is a setting of the gateway (gateway/config.py says what it means). total: None is no limit."""

    queue: float
    first_token: float
    between_tokens: float
    total: float | None
    stall: float
    resume: float

    @property
    def tick(self) -> float:
        """How often waiting sessions are looked at."""
        return max(min(self.first_token, self.between_tokens, self.stall) / 8, 0.01)

    def exceeded(self, *, begun: bool, waited: float) -> str:
        """What to say of a session that waited so long for a token; "" while it may go on waiting.

        begun: it has got tokens from this verifier.
        """
        if not begun and waited > self.first_token:
            return f"no first token within {self.first_token:g} s (--first-token-seconds)"
        if begun and waited > self.between_tokens:
            return f"no token within {self.between_tokens:g} s after the one before (--between-tokens-seconds)"
        return ""


class Ends:
    """When a request must have ended: its own deadline, or the server's limit on an answer.

    arrived: a reading of a clock in seconds. time_left: of the request's deadline then; None without one.
    """

    def __init__(self, arrived: float, time_left: float | None, total: float | None) -> None:
        self._deadline = None if time_left is None else arrived + time_left
        self._limit = None if total is None else arrived + total
        self._total = total

    def time_left(self, now: float) -> float | None:
        """Seconds until the first of them; None without any."""
        return min((end - now for end in (self._deadline, self._limit) if end is not None), default=None)

    def check(self, now: float) -> None:
        """Raises DeadlineExceeded when the time is over."""
        left = self.time_left(now)
        if left is not None and left <= 0:
            raise self.over()

    def over(self) -> DeadlineExceeded:
        """That the first of them has passed."""
        if self._limit is not None and (self._deadline is None or self._limit < self._deadline):
            return DeadlineExceeded(f"the answer took longer than {self._total:g} s (--total-seconds)")
        return DeadlineExceeded("the request's deadline has passed")
