"""What the gateway did since it started: sums over the ledgers of all requests, those that are open included.

The event loop writes, at the beginning and the end of a request only; any thread may read.
"""

from __future__ import annotations

import asyncio
import copy
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from dartspec.gateway.bounds import FIRST_TOKEN_BOUNDS, INTER_TOKEN_BOUNDS, REQUEST_BOUNDS
from dartspec.gateway.ledger import POSITIONS, Ledger
from dartspec.gateway.types import Finish, FinishReason, Mode
from dartspec.services.common.errors import DartspecError
from dartspec.services.common.histogram import Histogram

PARTS = ("draft", "search", "verify", "wait", "other")


@dataclass(frozen=True)
class Control:
    """Of all replicas. plain_classes: kinds of requests that the policy keeps from drafting. drifting: replicas whose
    rounds accept fewer draft tokens than the head's card says."""

    plain_classes: int = 0
    drifting: int = 0


@dataclass
class Totals:
    """Sums. Times in seconds.

    finished: answers by the mode that was used and why they ended. reasons: answers by why that mode was used.
    failures: requests by gRPC code. rounds_by_accepted: see `Ledger`. parts: where the time of requests that ended
    went, each ended one with all its parts.
    """

    finished: Counter[tuple[Mode, FinishReason]] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)
    prompt_tokens: int = 0
    committed_tokens: int = 0
    rounds: int = 0
    plain_steps: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    rounds_by_accepted: list[int] = field(default_factory=lambda: [0] * (POSITIONS + 1))
    failovers: int = 0
    ngram_fallbacks: int = 0
    parts: Counter[str] = field(default_factory=Counter)
    first_tokens: Histogram = field(default_factory=lambda: Histogram(FIRST_TOKEN_BOUNDS))
    inter_token: Histogram = field(default_factory=lambda: Histogram(INTER_TOKEN_BOUNDS))
    durations: Histogram = field(default_factory=lambda: Histogram(REQUEST_BOUNDS))
    running: int = 0
    waiting: int = 0
    control: Control = field(default_factory=Control)

    def add(self, ledger: Ledger) -> None:
        """What a request did so far; each of these only grows while it is open."""
        self.committed_tokens += ledger.delivered_tokens
        self.rounds += ledger.dart_rounds
        self.plain_steps += ledger.plain_steps
        self.draft_tokens += ledger.nodes_verified
        self.accepted_tokens += ledger.accepted
        self.failovers += ledger.failovers
        self.ngram_fallbacks += ledger.chain_fallbacks
        if ledger.dart_rounds:
            pairs = zip(self.rounds_by_accepted, ledger.rounds_by_accepted, strict=True)
            self.rounds_by_accepted = [own + its for own, its in pairs]
        if ledger.begun:
            self.first_tokens.add(ledger.ttft_ms / 1e3)
            self.inter_token.merge(ledger.inter_token)

    def add_ended(self, ledger: Ledger) -> None:
        """All that a request did."""
        self.add(ledger)
        for part in PARTS:
            self.parts[part] += getattr(ledger, f"{part}_ms") / 1e3


class Stats:
    """Follows requests from their arrival to their end."""

    def __init__(self, control: Callable[[], Control] = Control) -> None:
        self._control = control
        self._lock = threading.Lock()
        self._ended = Totals()
        self._open: dict[int, Ledger] = {}

    @contextmanager
    def request(self, ledger: Ledger) -> Iterator[None]:
        """Around everything that is done for a request; what ends it before `finished` is a failure."""
        with self._lock:
            self._open[id(ledger)] = ledger
        code = "INTERNAL"
        try:
            yield
        except DartspecError as error:
            code = error.code.name
            raise
        except (asyncio.CancelledError, GeneratorExit):
            code = "CANCELLED"
            raise
        finally:
            with self._lock:
                if self._open.pop(id(ledger), None) is not None:
                    self._ended.failures[code] += 1
                    self._ended.add_ended(ledger)

    def finished(self, finish: Finish) -> None:
        """The last message of an open request."""
        ledger = finish.ledger
        with self._lock:
            del self._open[id(ledger)]
            ended = self._ended
            ended.finished[finish.mode_used, finish.reason] += 1
            ended.reasons[ledger.mode_reason] += 1
            ended.prompt_tokens += finish.prompt_tokens
            ended.durations.add(ledger.total_ms / 1e3)
            ended.add_ended(ledger)

    def totals(self) -> Totals:
        """As they are now."""
        with self._lock:
            totals = copy.deepcopy(self._ended)
            for ledger in self._open.values():
                totals.add(ledger)
                totals.running += ledger.begun
                totals.waiting += not ledger.begun
            totals.control = self._control()
        return totals
