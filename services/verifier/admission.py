"""Whether a session fits, and the caches that it gets."""

from __future__ import annotations

import time

from dartspec.services.common.errors import InvalidArgument, ResourceExhausted
from dartspec.services.common.sampling_rules import check_sampling, check_token_ids
from dartspec.services.verifier.decoder import Decoder
from dartspec.services.verifier.kv_cache import rounded_capacity
from dartspec.services.verifier.messages import Open
from dartspec.services.verifier.sampling import History
from dartspec.services.verifier.session import Session

RETRY_AFTER_MS = 500


class Admission:
    """Counts sessions and reserved KV positions against the configured limits."""

    def __init__(self, max_sessions: int, kv_positions: int, context_length: int, max_nodes: int) -> None:
        self.max_sessions = max_sessions
        self.kv_positions = kv_positions
        self.context_length = context_length
        self.max_nodes = max_nodes
        self.kv_used = 0
        self.sessions = 0

    def open(self, command: Open, decoder: Decoder) -> Session:
        """A session with all the memory that it can need.

        Raises InvalidArgument with the field, ResourceExhausted when full now.
        """
        self._check(command, decoder)
        stop_ids = frozenset(command.sampling.stop_token_ids)
        eos = frozenset() if command.sampling.ignore_eos else frozenset(decoder.target.config.eos_token_ids)
        enders = stop_ids | eos
        _check_min_tokens(command, enders, decoder.target.config.vocab_size)
        prompt, answer = command.token_ids[: command.prompt_len], command.token_ids[command.prompt_len :]
        limit = min(command.prompt_len + command.sampling.max_tokens, self.context_length)
        wanted = rounded_capacity(limit + self.max_nodes + 1)
        if wanted > self.kv_positions:
            raise InvalidArgument(
                "sampling.max_tokens",
                f"prompt and answer need {wanted} KV positions, this verifier has {self.kv_positions}; ask for less",
            )
        if self.sessions >= self.max_sessions or self.kv_used + wanted > self.kv_positions:
            raise ResourceExhausted(
                f"full: {self.sessions} of {self.max_sessions} sessions, "
                f"{self.kv_used} of {self.kv_positions} KV positions in use, {wanted} wanted",
                retry_after_ms=RETRY_AFTER_MS,
            )
        drafts = decoder.proposer is not None and not command.plain_only
        now = time.monotonic()
        session = Session(
            opened=command,
            enders=enders,
            limit=limit,
            cache=decoder.target.new_cache(wanted),
            head_cache=decoder.proposer.new_cache() if drafts and decoder.proposer is not None else None,
            tokens=list(command.token_ids),
            history=History.of(prompt, answer),
            draft_after=command.draft_after,
            deadline=now + command.time_left_ms / 1e3 if command.time_left_ms else None,
            active_at=now,
        )
        self.sessions += 1
        self.kv_used += wanted
        return session

    def release(self, session: Session) -> None:
        """The session is gone."""
        self.sessions -= 1
        self.kv_used -= session.cache.capacity
        session.cache.release()

    def _check(self, command: Open, decoder: Decoder) -> None:
        vocab_size = decoder.target.config.vocab_size
        if not command.token_ids:
            raise InvalidArgument("open.token_ids", "the prompt is empty; at least one token is needed")
        if not 1 <= command.prompt_len <= len(command.token_ids):
            raise InvalidArgument(
                "open.prompt_len", f"must be between 1 and {len(command.token_ids)}, got {command.prompt_len}"
            )
        check_token_ids("open.token_ids", command.token_ids, vocab_size)
        check_sampling(command.sampling, vocab_size)
        if len(command.token_ids) >= self.context_length:
            raise InvalidArgument(
                "open.token_ids",
                f"{len(command.token_ids)} tokens leave no room in a context of {self.context_length}",
            )
        generated = len(command.token_ids) - command.prompt_len
        if generated >= command.sampling.max_tokens:
            raise InvalidArgument(
                "sampling.max_tokens",
                f"{generated} tokens are committed already, the limit is {command.sampling.max_tokens}",
            )


def _check_min_tokens(command: Open, enders: frozenset[int], vocab_size: int) -> None:
    sampling = command.sampling
    if len(command.token_ids) - command.prompt_len >= sampling.min_tokens:
        return
    allowed = set(sampling.allowed_token_ids) or set(range(vocab_size))
    if not allowed - set(sampling.banned_token_ids) - enders:
        raise InvalidArgument(
            "sampling.min_tokens",
            "every allowed token ends the answer, so none could be chosen before min_tokens; allow more or ask for 0",
        )
