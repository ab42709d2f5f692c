"""One open answer: its tokens, caches and what it waits for."""

from __future__ import annotations

from dataclasses import dataclass, field

from dartspec.services.common.types import Proposals
from dartspec.services.draft.cache import HeadCache
from dartspec.services.verifier.edits import History
from dartspec.services.verifier.features import SessionFeatures
from dartspec.services.verifier.gain import Gain
from dartspec.services.verifier.kv_cache import KVCache
from dartspec.services.verifier.messages import Finish, Open, Verify


@dataclass
class Session:
    """State of an answer. Position contract: tokens[0..n-1] are in ``cache``, tokens[n] is pending.

    During prefill ``tokens`` is the prompt and nothing is pending yet.
    """

    opened: Open
    enders: frozenset[int]
    limit: int  # length of ``tokens`` at which the answer ends with LENGTH
    cache: KVCache
    head_cache: HeadCache | None  # None: never drafts
    tokens: list[int]
    history: History
    # Features of positions head_cache.length .. n-1, which the draft head has not seen yet. None: never drafts.
    features: SessionFeatures | None = None
    sound: bool = True  # False: its rows are not to be trusted
    proposals: Proposals | None = None
    verify: Verify | None = None
    credit: int = 0
    draft_after: bool = False
    may_offer: bool = False
    # Where credit would have ended that lapsed; more of it may be on its way.
    lapsed: int | None = None
    deadline: float | None = None  # time.monotonic()
    gain: Gain = field(default_factory=Gain)
    waiting_since: float = 0.0
    active_at: float = 0.0

    @property
    def n(self) -> int:
        """Committed and processed tokens."""
        return self.cache.length

    @property
    def prefilling(self) -> bool:
        """The prompt is not in the cache yet."""
        return self.cache.length < len(self.opened.token_ids)

    @property
    def prompt_left(self) -> int:
        """Tokens of the prompt that are not in the cache yet."""
        return max(len(self.opened.token_ids) - self.cache.length, 0)

    @property
    def runnable(self) -> bool:
        """A pass can be made now."""
        return self.prefilling or self.verify is not None or self.credit > 0

    @property
    def wants_draft(self) -> bool:
        """Proposals may go out with the next event."""
        return self.may_offer or (self.draft_after and self.credit == 0)

    def offer(self) -> None:
        """Proposals go out; credit that is left lapses."""
        if self.credit:
            self.lapsed, self.credit = self.n + self.credit, 0

    @property
    def room(self) -> int:
        """Tokens that may still be generated."""
        return self.limit - len(self.tokens)

    def finish_of(self, token: int) -> Finish | None:
        """Why the answer is over with ``token`` as its last, already appended token; None when it goes on."""
        if token in self.enders:
            return Finish.STOP
        return Finish.LENGTH if len(self.tokens) >= self.limit else None

    def lag(self) -> int:
        """Positions whose features wait for the draft head."""
        return 0 if self.features is None else self.features.count
