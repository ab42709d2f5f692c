"""Whether a session fits, and the caches that it gets."""

from __future__ import annotations

import time
from collections.abc import Iterable

from dartspec.services.common.errors import InvalidArgument, ResourceExhausted
from dartspec.services.common.sampling_rules import check_sampling, check_token_ids
from dartspec.services.draft.propose import Proposer
from dartspec.services.verifier.decoder import Decoder
from dartspec.services.verifier.edits import History
from dartspec.services.verifier.features import SessionFeatures
from dartspec.services.verifier.kv_cache import KVCache, rounded_capacity
from dartspec.services.verifier.messages import Open
from dartspec.services.verifier.prefix_store import PrefixStore
from dartspec.services.verifier.session import Session

RETRY_AFTER_MS = 500


class Admission:
    """Counts sessions and reserved KV positions against the configured limits.

    prefixes: what sessions can reuse of one another; None before the first session, and where it is not wanted.
    """

    def __init__(
        self, max_sessions: int, kv_positions: int, context_length: int, max_nodes: int, prefix_reuse: bool = True
    ) -> None:
        self.max_sessions = max_sessions
        self.kv_positions = kv_positions
        self.context_length = context_length
        self.max_nodes = max_nodes
        self.kv_used = 0
        self.sessions = 0
        self.prefixes: PrefixStore | None = None
        self._prefix_reuse = prefix_reuse

    @property
    def reused_tokens(self) -> int:
        """Tokens of prompts that were taken over instead of computed, since the start."""
        return 0 if self.prefixes is None else self.prefixes.reused_tokens

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
        drafts = decoder.proposer is not None and not command.plain_only
        # Behind the prefix a pass writes the root and the nodes, and a draft its MASK rows.
        masks = decoder.proposer.config.depth if decoder.proposer is not None and drafts else 0
        wanted = rounded_capacity(limit + max(self.max_nodes + 1, masks))
        if wanted > self.kv_positions:
            raise InvalidArgument(
                "sampling.max_tokens",
                f"prompt and answer need {wanted} KV positions, this verifier has {self.kv_positions}; ask for less",
            )
        prefixes = self._prefixes_of(decoder)
        if prefixes is not None:
            prefixes.refresh()
            prefixes.reserve(command.token_ids, drafts)
        if (
            self.sessions >= self.max_sessions
            or self.kv_used + wanted > self.kv_positions
            or decoder.target.pool.room(wanted) is None
        ):
            raise ResourceExhausted(
                f"full: {self.sessions} of {self.max_sessions} sessions, "
                f"{self.kv_used} of {self.kv_positions} KV positions in use, {wanted} wanted",
                retry_after_ms=RETRY_AFTER_MS,
            )
        now = time.monotonic()
        cache = decoder.target.new_cache(wanted)
        features = _session_features(cache, decoder.proposer) if drafts and decoder.proposer is not None else None
        session = Session(
            opened=command,
            enders=enders,
            limit=limit,
            cache=cache,
            head_cache=None if features is None else features.cache,
            tokens=list(command.token_ids),
            history=History.of(prompt, answer),
            features=features,
            draft_after=command.draft_after,
            deadline=now + command.time_left_ms / 1e3 if command.time_left_ms else None,
            active_at=now,
        )
        self.sessions += 1
        self.kv_used += wanted
        if prefixes is not None:
            prefixes.opened(session)
            prefixes.reuse(session)
        return session

    def release(self, session: Session) -> None:
        """The session is gone. What only it held of its tokens may be kept for others."""
        self.leave(session)
        self.free(session)

    def leave(self, session: Session) -> None:
        """The first part of `release`: the session does not count any more."""
        self.sessions -= 1
        self.kv_used -= session.cache.capacity

    def free(self, session: Session) -> None:
        """The second part, before anything is opened: milliseconds if much is kept."""
        if self.prefixes is not None:
            self.prefixes.closed(session)
        session.cache.release()

    def reuse(self, sessions: Iterable[Session]) -> None:
        """Let those of the sessions that still read their prompts take over what others have read meanwhile."""
        if self.prefixes is None or not (reading := [session for session in sessions if session.prefilling]):
            return
        self.prefixes.refresh()
        for session in reading:
            self.prefixes.reuse(session)

    def _prefixes_of(self, decoder: Decoder) -> PrefixStore | None:
        """Where prefixes are kept for this target and head; None where they are not, as for any second pair."""
        if not self._prefix_reuse:
            return None
        head = None if decoder.proposer is None else decoder.proposer.head
        if self.prefixes is None:
            self.prefixes = PrefixStore(decoder.target.pool, head)
        same = self.prefixes.pool is decoder.target.pool and self.prefixes.head is head
        return self.prefixes if same else None

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


def _session_features(cache: KVCache, proposer: Proposer) -> SessionFeatures:
    rows = cache.region.draft_rows(proposer.config, proposer.head.fc.weight.dtype)
    return SessionFeatures(rows, cache.start, proposer.new_cache(rows.head_store(cache.start, cache.capacity)))


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
