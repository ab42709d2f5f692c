"""Every error that dartspec raises on purpose.

DartspecError
├── InvalidArgument      the caller sent something wrong; names the field
├── FailedPrecondition   right request, wrong place: fingerprints, missing head, unsupported model
├── Unauthenticated      no API key, or one that is not known
├── NotFound             a named thing does not exist
├── ResourceExhausted    full now; says when to try again
├── DeadlineExceeded     the request's time is over
├── Cancelled            the caller went away
├── Unavailable          the other side cannot be reached
├── Evicted              the session was dropped to free memory and can be resumed
└── InternalError        our own fault

Servers turn them into gRPC statuses in one place (`common.server`), commands into one line on stderr (`cli.main`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import grpc


class DartspecError(Exception):
    """Base of the tree. ``message`` is for people and names the bad value and the way out."""

    number: int = 13  # the google.rpc.Code, INTERNAL

    def __init__(self, message: str, *, field: str = "", retry_after_ms: int = 0) -> None:
        super().__init__(message)
        self.message = message
        self.field = field
        self.retry_after_ms = retry_after_ms

    @property
    def code(self) -> grpc.StatusCode:
        """The gRPC status of this error."""
        import grpc  # here, so that a model runs where there is none

        return next(status for status in grpc.StatusCode if status.value[0] == self.number)


class InvalidArgument(DartspecError):
    """The caller sent something wrong; ``field`` names it."""

    number = 3  # INVALID_ARGUMENT

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message if message.startswith(field) else f"{field}: {message}", field=field)


class FailedPrecondition(DartspecError):
    """The request is well formed but does not fit this service."""

    number = 9  # FAILED_PRECONDITION


class Unauthenticated(DartspecError):
    """No API key, or one that is not known."""

    number = 16  # UNAUTHENTICATED


class NotFound(DartspecError):
    """A named thing does not exist."""

    number = 5  # NOT_FOUND


class ResourceExhausted(DartspecError):
    """Full now; ``retry_after_ms`` says when to try again."""

    number = 8  # RESOURCE_EXHAUSTED


class DeadlineExceeded(DartspecError):
    """The request's time is over."""

    number = 4  # DEADLINE_EXCEEDED


class Cancelled(DartspecError):
    """The caller went away."""

    number = 1  # CANCELLED


class Unavailable(DartspecError):
    """The other side cannot be reached; the same request may succeed later or elsewhere."""

    number = 14  # UNAVAILABLE


class Evicted(DartspecError):
    """The session was dropped to free memory; the request can be resumed."""

    number = 10  # ABORTED


class InternalError(DartspecError):
    """A fault of ours."""

    number = 13  # INTERNAL


_BY_NUMBER: dict[int, type[DartspecError]] = {
    cls.number: cls
    for cls in (
        FailedPrecondition,
        Unauthenticated,
        NotFound,
        ResourceExhausted,
        DeadlineExceeded,
        Cancelled,
        Unavailable,
        Evicted,
        InternalError,
    )
}


def error_from_code(number: int, message: str, *, field: str = "", retry_after_ms: int = 0) -> DartspecError:
    """The error of a google.rpc.Code that came over the wire; an unknown code is an InternalError."""
    if number == InvalidArgument.number:
        return InvalidArgument(field or "request", message)
    return _BY_NUMBER.get(number, InternalError)(message, field=field, retry_after_ms=retry_after_ms)
