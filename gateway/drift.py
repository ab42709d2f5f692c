"""Whether a draft head still does what its card says: accepted draft tokens a round, as measured and as expected."""

from __future__ import annotations

from dataclasses import dataclass

FEWEST_ROUNDS = 500  # new ones, before anything is said; the verifier's mean covers about as many
ALERT_BELOW, CALM_ABOVE = 0.7, 0.8  # of what the card says


@dataclass
class AcceptanceDrift:
    """Of one replica. drifting: an alert is on. ratio: accepted over expected; 0 while that is not known."""

    drifting: bool = False
    ratio: float = 0.0
    _first_rounds: int | None = None

    def observe(self, expected: float, accepted: float, rounds: int) -> bool:
        """Take a load report's figures; True when ``drifting`` changed.

        expected: draft tokens accepted a round by the head's card, 0 without one. accepted: the verifier's running
        mean. rounds: since the verifier started; fewer than before mean that it has started anew.
        """
        if self._first_rounds is None or rounds < self._first_rounds:
            self._first_rounds = 0 if rounds < FEWEST_ROUNDS else rounds - FEWEST_ROUNDS
        if expected <= 0 or rounds - self._first_rounds < FEWEST_ROUNDS:
            return False
        self.ratio = accepted / expected
        before = self.drifting
        self.drifting = self.ratio < (CALM_ABOVE if before else ALERT_BELOW)
        return self.drifting != before
