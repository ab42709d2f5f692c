"""Whether a request whose verifier failed goes on elsewhere. Pure: the clock is passed in, in seconds."""

from __future__ import annotations

from dartspec.gateway.limits import Stalled
from dartspec.services.common.errors import (
    DartspecError,
    Evicted,
    InternalError,
    ResourceExhausted,
    Unavailable,
    error_from_code,
)

SHORTEST_PAUSE = 0.1
LONGEST_PAUSE = 1.0


class Failover:
    """Before its first token a request tries each verifier, and waits ``queue`` seconds for one that takes it.

    After it, it looks for one for ``patience`` seconds without progress.

    begun: the answer has tokens from before. avoid: addresses that failed since the last progress. An error that
    another verifier would give too is raised at once; an internal error is tried on one other verifier, so that a
    request that breaks verifiers breaks two; and so is a request whose first token does not come.
    """

    def __init__(self, patience: float, *, begun: bool, queue: float = 0.0) -> None:
        self.avoid: set[str] = set()
        self._patience = patience
        self._queue = queue
        self._error: DartspecError | None = None
        self._internal_errors = 0
        self._first_tokens_missed = 0
        self._stuck_since: float | None = None
        self._begun = begun

    def progressed(self) -> None:
        """Tokens were committed."""
        self._begun = True
        self._error = None
        self._stuck_since = None
        self._first_tokens_missed = 0
        self.avoid.clear()

    def failed(self, address: str, error: DartspecError, now: float) -> None:
        """A verifier failed the session. Raises the error when going elsewhere is no use."""
        self._internal_errors += isinstance(error, InternalError)
        self._first_tokens_missed += isinstance(error, Stalled) and not self._begun
        if (
            not isinstance(error, Unavailable | Evicted | ResourceExhausted | InternalError)
            or self._internal_errors > 1
            or self._first_tokens_missed > 1
        ):
            raise error
        # A session that was evicted for idling may go back to where it was; one that never moved may not.
        if not (isinstance(error, Evicted) and self._begun and self._error is None):
            self.avoid.add(address)
        self._error = error
        if self._stuck_since is None:
            self._stuck_since = now

    def none_left(self, error: DartspecError, now: float) -> float:
        """No verifier is left to try. Returns the pause before all may be tried again, or raises why there is none."""
        cause = self._error or error
        if self._stuck_since is None:
            self._stuck_since = now
        longest = self._patience if self._begun else self._queue
        in_vain = isinstance(cause, InternalError) or (isinstance(cause, Stalled) and not self._begun)
        if in_vain or now - self._stuck_since >= longest:
            raise cause if in_vain or not longest else _after(longest, cause, begun=self._begun) from cause
        self.avoid.clear()
        return min(max(cause.retry_after_ms / 1e3, SHORTEST_PAUSE), LONGEST_PAUSE, self._stuck_since + longest - now)


def _after(seconds: float, cause: DartspecError, *, begun: bool) -> DartspecError:
    """The cause, and the limit that was waited for."""
    limit = "to go on (--resume-seconds)" if begun else "to begin (--queue-seconds)"
    message = f"no verifier within {seconds:g} s {limit}: {cause.message}"
    return error_from_code(cause.number, message, field=cause.field, retry_after_ms=cause.retry_after_ms)
