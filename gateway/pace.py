"""How long chunks may be held back so that several leave as one: not at all, until the event loop falls behind."""

from __future__ import annotations

import asyncio
import time

LONGEST_HOLD = 0.1
PERIOD = 0.05  # how often the loop is asked whether it is late
IGNORED = 0.02  # lateness that bursts cause on any loop
HOLD_FOR_LATENESS = 4.0
NEW = 0.3  # weight of the newest observation


def next_hold(hold: float, lateness: float) -> float:
    """Seconds to hold chunks after the loop was so late: a running mean, because holding helps and must not flap."""
    wanted = min(LONGEST_HOLD, HOLD_FOR_LATENESS * max(0.0, lateness - IGNORED))
    return hold + NEW * (wanted - hold)


class Pace:
    """hold: seconds by which a chunk may follow the one before it late; 0 on a loop that keeps up."""

    def __init__(self) -> None:
        self.hold = 0.0

    async def run(self) -> None:
        """Watch the loop until cancelled."""
        while True:
            due = time.monotonic() + PERIOD
            await asyncio.sleep(PERIOD)
            self.hold = next_hold(self.hold, time.monotonic() - due)
