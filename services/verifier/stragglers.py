"""Whether a pass should wait for sessions whose candidates are still being searched.

A pass over more rows costs little more than one over fewer, so a session that comes a moment after a pass began pays
for it with nearly a whole pass of its own. Waiting costs those that are ready.
"""

from __future__ import annotations

from collections.abc import Hashable

# Weight of the newest turnaround in the running mean.
NEW = 0.1
# A session that is late by this factor is not waited for any longer.
LATE = 2.0
# One that has been away for so many passes does not count among those that decode: its client has stopped reading.
AWAY_PASSES = 4.0
# Before anything was measured.
FIRST_TURNAROUND_SECONDS = 0.003
# The same for a pass.
FIRST_PASS_SECONDS = 0.03


class Stragglers:
    """Sessions that were sent proposals and have not answered, and how long answers take."""

    def __init__(self) -> None:
        self._left: dict[Hashable, float] = {}
        self._turnaround = FIRST_TURNAROUND_SECONDS
        self._pass = FIRST_PASS_SECONDS

    def left(self, key: Hashable, now: float) -> None:
        """Proposals are on their way."""
        self._left[key] = now

    def arrived(self, key: Hashable, now: float) -> None:
        """The session's order is here."""
        since = self._left.pop(key, None)
        if since is not None:
            # One slow client must not make everybody wait, so a single measurement counts for little.
            self._turnaround += NEW * (min(now - since, LATE * self._turnaround) - self._turnaround)

    def away(self, now: float) -> int:
        """Sessions that will come back to decode, as far as one can tell."""
        longest = AWAY_PASSES * self._pass
        return sum(now - since < longest for since in self._left.values())

    def gone(self, key: Hashable) -> None:
        """The session is closed."""
        self._left.pop(key, None)

    def passed(self, seconds: float) -> None:
        """A pass took so long."""
        self._pass += NEW * (seconds - self._pass)

    def patience(self, ready: int, now: float) -> float:
        """Seconds to wait for more when ``ready`` sessions could go now; 0: go."""
        expected = [since + LATE * self._turnaround - now for since in self._left.values()]
        coming = [left for left in expected if left > 0]
        if not coming or self._turnaround * ready >= self._pass * len(coming):
            return 0.0
        return max(coming)
