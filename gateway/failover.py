"""Whether a request whose verifier failed goes on elsewhere. Pure: the clock is passed in, in seconds."""

from __future__ import annotations

from dartspec.services.common.errors import (
    DartspecError,
    Evicted,
    InternalError,
    ResourceExhausted,
    Unavailable,
)

SHORTEST_PAUSE = 0.1
LONGEST_PAUSE = 1.0


class Failover:
    """Before its first token a request tries each verifier once; after it, for ``patience`` seconds without progress.

    begun: the answer has tokens from before. avoid: addresses that failed since the last progress. An error that
    another verifier would give too is raised at once; an internal error is tried on one other verifier, so that a
    request that breaks verifiers breaks two.
    """

    def __init__(self, patience: float, *, begun: bool) -> None:
        self.avoid: set[str] = set()
        self._patience = patience
        self._error: DartspecError | None = None
        self._internal_errors = 0
        self._stuck_since: float | None = None
        self._begun = begun

    def progressed(self) -> None:
        """Tokens were committed."""
        self._begun = True
        self._error = None
        self._stuck_since = None
        self.avoid.clear()

    def failed(self, address: str, error: DartspecError, now: float) -> None:
        """A verifier failed the session. Raises the error when going elsewhere is no use."""
        self._internal_errors += isinstance(error, InternalError)
        if (
            not isinstance(error, Unavailable | Evicted | ResourceExhausted | InternalError)
            or self._internal_errors > 1
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
        if not self._begun or isinstance(cause, InternalError) or now - self._stuck_since >= self._patience:
            raise cause
        self.avoid.clear()
        return min(max(cause.retry_after_ms / 1e3, SHORTEST_PAUSE), LONGEST_PAUSE)
