"""Where a request's time went and what its rounds did: sums, without a clock of their own."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dartspec.gateway.bounds import INTER_TOKEN_BOUNDS
from dartspec.services.common.histogram import Histogram

if TYPE_CHECKING:
    from dartspec.gateway.types import Round

POSITIONS = 32  # depths of accepted tokens that are told apart; what is deeper counts with the last


@dataclass
class Ledger:
    """Sums over the rounds of one request. Clock readings in seconds, durations in milliseconds.

    The draft that runs with the prefill is in draft_ms, since its candidates are verified in the first round, but
    its time lies before the first token and so outside decode_ms. The prefill's own pass is in ttft_ms only.
    rounds_by_accepted: rounds of dart_rounds by their A, at most POSITIONS. inter_token: seconds between tokens; those
    that came together share the time since the one before them.
    """

    arrived: float
    mode_reason: str = ""
    dart_rounds: int = 0
    plain_steps: int = 0
    dart_committed: int = 0
    accepted: int = 0
    nodes_offered: int = 0
    nodes_verified: int = 0
    draft_ms: float = 0.0
    search_ms: float = 0.0
    verify_ms: float = 0.0
    wait_ms: float = 0.0
    chain_fallbacks: int = 0
    delivered_accepted: int = 0
    delivered_tokens: int = 0
    failovers: int = 0
    rounds_by_accepted: list[int] = field(default_factory=lambda: [0] * (POSITIONS + 1))
    inter_token: Histogram = field(default_factory=lambda: Histogram(INTER_TOKEN_BOUNDS))
    _since_last: float | None = None
    _first_draft_ms: float = 0.0
    _first_token: float | None = None
    _last_token: float | None = None
    _ended: float | None = None

    def opened(self, round: Round, now: float) -> None:
        """A prefill gave a token; after a change of replica its time is part of other_ms."""
        self.draft_ms += round.draft_ms
        if self._first_token is None:
            self._first_token = now
            self._first_draft_ms = round.draft_ms
        self._committed(now)

    def decoded(self, round: Round, now: float) -> None:
        """A plain step gave a token."""
        self.plain_steps += 1
        self._passed(round, now)

    def verified(self, round: Round, now: float) -> None:
        """A round verified candidates."""
        self.dart_rounds += 1
        self.dart_committed += round.accepted + 1
        self.accepted += round.accepted
        self.rounds_by_accepted[min(round.accepted, POSITIONS)] += 1
        self.nodes_offered += round.nodes_offered
        self.nodes_verified += round.nodes_verified
        self._passed(round, now)

    def searched(self, search_ms: float, *, chain: bool = False) -> None:
        """A tree was searched, or the verifier's chain stood in."""
        self.search_ms += search_ms
        self.chain_fallbacks += chain

    def delivered(self, round: Round, tokens: int) -> None:
        """This many of the round's tokens were delivered; its accepted candidates come first."""
        self.delivered_accepted += min(round.accepted, tokens)
        self.delivered_tokens += tokens
        if self._since_last is not None and tokens:
            self.inter_token.add(self._since_last / tokens, tokens)

    def left_verifier(self) -> None:
        """The answer goes on elsewhere after a failure."""
        self.failovers += 1

    def ended(self, now: float) -> None:
        """Nothing follows."""
        self._ended = now

    def _passed(self, round: Round, now: float) -> None:
        self.draft_ms += round.draft_ms
        self.verify_ms += round.verify_ms
        self.wait_ms += round.wait_ms
        self._committed(now)

    def _committed(self, now: float) -> None:
        self._since_last = None if self._last_token is None else now - self._last_token
        self._last_token = now

    @property
    def begun(self) -> bool:
        """Whether there is a first token."""
        return self._first_token is not None

    @property
    def rejected(self) -> int:
        """Candidates that were verified and not accepted."""
        return self.nodes_verified - self.accepted

    @property
    def ttft_ms(self) -> float:
        """From arrival to the first token; 0 without one."""
        return 0.0 if self._first_token is None else 1e3 * (self._first_token - self.arrived)

    @property
    def decode_ms(self) -> float:
        """From the first token to the last."""
        if self._first_token is None or self._last_token is None:
            return 0.0
        return 1e3 * (self._last_token - self._first_token)

    @property
    def other_ms(self) -> float:
        """The rest of decoding: transport, messages, the gateway itself."""
        inside = self.draft_ms - self._first_draft_ms + self.search_ms + self.verify_ms + self.wait_ms
        return max(0.0, self.decode_ms - inside)

    @property
    def total_ms(self) -> float:
        """From arrival to the end."""
        return 0.0 if self._ended is None else 1e3 * (self._ended - self.arrived)
