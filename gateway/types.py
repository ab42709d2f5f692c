"""Values inside the gateway. `Proposals` and `Tree` messages pass through unopened, so they stay as they came."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from dartspec.gateway.ledger import Ledger
from dartspec.services.common.types import Sampling, TopTokens
from dartspec.v1 import common_pb2


class Mode(enum.IntEnum):
    """Which way of decoding may be used; numbered as in gateway.proto."""

    AUTO = 1
    PLAIN = 2
    DART = 3


class FinishReason(enum.IntEnum):
    """Why an answer ended; numbered as in common.proto."""

    NONE = 0
    STOP = 1
    LENGTH = 2


class NoDraftReason(enum.IntEnum):
    """Why a round carries no proposals; numbered as in verifier.proto."""

    NONE = 0
    FINISHED = 1
    NO_HEAD = 2
    PLAIN_ONLY = 3
    DOES_NOT_PAY = 4
    NEAR_LIMIT = 5


class RoundKind(enum.Enum):
    """The command that a round answers."""

    OPEN = "open"
    VERIFY = "verify"
    DECODE = "decode"


@dataclass(frozen=True)
class Round:
    """Tokens committed by one pass of the target.

    n: position of the last of token_ids. logprobs: natural logarithms under the raw logits, one a token.
    margins: by how much each token beat the runner-up. top_logprobs: the likeliest tokens where each was chosen; empty
    unless asked for.
    accepted: A; the pass committed M = A + 1 tokens before a stop cut them. search_nodes: how many nodes of a tree the
    verifier thinks worth searching for in its proposals; 0 is no opinion. Times in milliseconds.
    """

    kind: RoundKind
    n: int
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    margins: tuple[float, ...] = ()
    top_logprobs: tuple[TopTokens, ...] = ()
    accepted: int = 0
    nodes_offered: int = 0
    nodes_verified: int = 0
    proposals: common_pb2.Proposals | None = None
    search_nodes: int = 0
    no_draft_reason: NoDraftReason = NoDraftReason.NONE
    draft_ms: float = 0.0
    verify_ms: float = 0.0
    wait_ms: float = 0.0
    finish_reason: FinishReason = FinishReason.NONE


@dataclass(frozen=True)
class Opening:
    """What a verifier needs to begin or resume an answer.

    token_ids: the prompt, then tokens committed before. time_left_ms: 0 is no limit. request_class: see `classes`.
    """

    token_ids: tuple[int, ...]
    prompt_len: int
    sampling: Sampling
    seed: int
    mode: Mode
    time_left_ms: int
    request_id: str
    request_class: str = ""


@dataclass(frozen=True)
class Start:
    """How an answer will be made; the first message."""

    request_id: str
    model: str
    seed: int
    sampling: Sampling
    prompt_token_ids: tuple[int, ...]
    mode: Mode


@dataclass(frozen=True)
class Chunk:
    """Tokens committed together, from index first_index of the answer, and the text that is complete now."""

    first_index: int
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    text: str
    margins: tuple[float, ...] = ()
    top_logprobs: tuple[TopTokens, ...] = ()


@dataclass(frozen=True)
class Finish:
    """How an answer ended and what it cost; the last message.

    mode_used: PLAIN, DART, or AUTO when both were. completion_tokens: those delivered, committed ones included.
    """

    mode_used: Mode
    reason: FinishReason
    stop: str
    prompt_tokens: int
    completion_tokens: int
    ledger: Ledger
