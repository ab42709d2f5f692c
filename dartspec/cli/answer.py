"""An answer as the client saw it, with the gateway's ledger of where the time went."""

from __future__ import annotations

from dataclasses import dataclass

from dartspec.services.common.types import TopTokens


@dataclass(frozen=True)
class Ledger:
    """Sums over the rounds of one request; times in milliseconds. Fields as in the protocol's message."""

    mode: str
    mode_reason: str
    dart_rounds: int
    plain_steps: int
    dart_committed: int
    accepted: int
    nodes_offered: int
    nodes_verified: int
    draft_ms: float
    search_ms: float
    verify_ms: float
    wait_ms: float
    other_ms: float
    ttft_ms: float
    decode_ms: float
    total_ms: float
    chain_fallbacks: int


@dataclass(frozen=True)
class Answer:
    """Everything that one request brought.

    token_ids, logprobs and margins have one entry a token; a margin is the distance of the token's score from the
    runner-up's. So has top_logprobs, the likeliest tokens with their log-probabilities, if they were asked for; else it
    is empty. ``ttft_s`` and ``total_s`` are the client's own clock, from sending the request to the first token and to
    the end.
    """

    model: str
    seed: int
    prompt_tokens: int
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    margins: tuple[float, ...]
    top_logprobs: tuple[TopTokens, ...]
    reason: str
    stop: str
    ledger: Ledger
    ttft_s: float
    total_s: float

    @property
    def decode_s(self) -> float:
        """Seconds from the first token to the last, by the gateway's clock."""
        return self.ledger.decode_ms / 1000.0
