"""Whether a verifier gets new sessions, judged by its progress. Pure: the clock is passed in, in seconds."""

from __future__ import annotations

import enum

FAILURES = 3
FIRST_REST_SECONDS = 1.0
LAST_REST_SECONDS = 30.0


class BreakerState(enum.Enum):
    """closed: used. open: rests after failures. half_open: one session at a time tries it."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class Breaker:
    """Opens after failures in a row, or at once for a stall; rests longer each time until a trial gets a token.

    What says nothing about the verifier counts neither way and is not reported here: errors of clients, refusals
    because it is full or drains, sessions that were cancelled or ran out of time. A trial that ends so makes room for
    another.
    """

    def __init__(self) -> None:
        self.failures = 0
        self._rest = FIRST_REST_SECONDS
        self._open_until: float | None = None  # None is closed
        self._trial: object | None = None

    def state(self, now: float) -> BreakerState:
        """Its state at a time."""
        if self._open_until is None:
            return BreakerState.CLOSED
        return BreakerState.OPEN if now < self._open_until else BreakerState.HALF_OPEN

    def allows(self, now: float) -> bool:
        """Whether a new session may go there."""
        state = self.state(now)
        return state is BreakerState.CLOSED or (state is BreakerState.HALF_OPEN and self._trial is None)

    def began(self, session: object, now: float) -> None:
        """A session was opened there."""
        if self.state(now) is BreakerState.HALF_OPEN and self._trial is None:
            self._trial = session

    def ended(self, session: object) -> None:
        """A session is over, whatever came of it."""
        if self._trial is session:
            self._trial = None

    def succeeded(self) -> None:
        """Tokens were committed."""
        self.failures = 0
        self._rest = FIRST_REST_SECONDS
        self._open_until = self._trial = None

    def failed(self, now: float, *, stalled: bool = False) -> None:
        """A failure that is the verifier's own. ``stalled``: no session got anything for a whole time limit."""
        self.failures += 1
        self._trial = None
        was_open = self._open_until is not None
        if self.state(now) is BreakerState.OPEN:
            return  # of a session from before; the rest is under way
        if was_open or stalled or self.failures >= FAILURES:
            self._open_until = now + self._rest
            self._rest = min(2 * self._rest, LAST_REST_SECONDS)
