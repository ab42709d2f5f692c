"""What gateways order and what the engine answers, without protobuf. See proto/dartspec/v1/verifier.proto."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from dartspec.services.common.errors import DartspecError
from dartspec.services.common.types import Proposals, Sampling, TopTokens, Tree


class NoDraft(Enum):
    """Why a round carries no proposals; names are those of the protocol."""

    FINISHED = "FINISHED"
    NO_HEAD = "NO_HEAD"
    PLAIN_ONLY = "PLAIN_ONLY"
    DOES_NOT_PAY = "DOES_NOT_PAY"
    NEAR_LIMIT = "NEAR_LIMIT"


class Finish(Enum):
    """Why an answer ended; names are those of the protocol."""

    STOP = "STOP"
    LENGTH = "LENGTH"


@dataclass(frozen=True)
class Open:
    """Start a session: prefill ``token_ids`` and choose the next token."""

    session: int
    token_ids: list[int]
    prompt_len: int
    sampling: Sampling
    seed: int
    time_left_ms: int
    request_id: str
    draft_after: bool
    plain_only: bool
    always_draft: bool = False


@dataclass(frozen=True)
class Verify:
    """One verification pass. ``tree`` None: the best chain of the last proposals, ``chain_nodes`` long (0: all)."""

    session: int
    n: int
    tree: Tree | None
    chain_nodes: int
    draft_after: bool


@dataclass(frozen=True)
class Decode:
    """Credit for ``steps`` plain passes, to be used when the session has reached ``n``.

    may_offer: proposals may come before the last of them, and what is left lapses.
    """

    session: int
    n: int
    steps: int
    draft_after: bool
    may_offer: bool = False


@dataclass(frozen=True)
class Close:
    """Free a session; nothing is answered."""

    session: int


@dataclass(frozen=True)
class Malformed:
    """A command that could not be read; the session that it names fails with ``error``."""

    session: int
    error: DartspecError


Command = Open | Verify | Decode | Close | Malformed


class Round(NamedTuple):
    """One pass for one session. Times in milliseconds. ``top_logprobs`` is empty unless asked for."""

    session: int
    n: int
    token_ids: list[int]
    logprobs: list[float]
    margins: list[float]
    top_logprobs: list[TopTokens]
    accepted: int
    nodes_offered: int
    nodes_verified: int
    proposals: Proposals | None
    search_nodes: int  # with proposals: how many nodes are worth searching for; 0: no opinion
    no_draft: NoDraft | None
    draft_ms: float
    verify_ms: float
    wait_ms: float
    finish: Finish | None


@dataclass(frozen=True)
class Failed:
    """The session is gone because of ``error``; ``committed`` tokens had been generated."""

    session: int
    error: DartspecError
    committed: int


Event = Round | Failed


@dataclass(frozen=True)
class Load:
    """Load of the replica: what is open now, counters since its start, running means; see common.proto."""

    sessions: int = 0
    queued: int = 0
    kv_used: int = 0
    kv_capacity: int = 0
    committed_tokens: int = 0
    rounds: int = 0
    accepted_tokens: int = 0
    waiting_sessions: int = 0
    running_sessions: int = 0
    prompt_tokens_left: int = 0
    committed_tokens_per_second: float = 0.0
    pass_ms: float = 0.0
    draft_ms: float = 0.0
    accepted_per_round: float = 0.0
    verified_per_depth: tuple[int, ...] = ()
    accepted_per_depth: tuple[int, ...] = ()
    draining: bool = False
