"""How often a session may change between drafting and plain decoding. Pure."""

from __future__ import annotations

from collections import deque

WINDOW_SECONDS = 60.0
MOST = 6  # changes in any window
MOST_BEFORE_A_TRY = 2  # a try is two changes; what is left is for decisions


class Switches:
    """Of one session. drafting: what it does now."""

    def __init__(self, drafting: bool) -> None:
        self.drafting = drafting
        self._at: deque[float] = deque(maxlen=MOST)

    def may_try(self, now: float) -> bool:
        """Whether there is room for a try of the other way."""
        return sum(now - at < WINDOW_SECONDS for at in self._at) <= MOST_BEFORE_A_TRY

    def want(self, drafting: bool, now: float) -> bool:
        """Change to this way unless there were too many changes lately; returns the way that it goes on with."""
        if drafting != self.drafting and (len(self._at) < MOST or now - self._at[0] >= WINDOW_SECONDS):
            self._at.append(now)
            self.drafting = drafting
        return self.drafting
