"""Every error that dartspec raises on purpose.

DartspecError
├── InvalidArgument      the caller sent something wrong; names the field
├── FailedPrecondition   right request, wrong place: fingerprints, missing head, unsupported model
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

import grpc


class DartspecError(Exception):
    """Base of the tree. ``message`` is for people and names the bad value and the way out."""

    code: grpc.StatusCode = grpc.StatusCode.INTERNAL

    def __init__(self, message: str, *, field: str = "", retry_after_ms: int = 0) -> None:
        super().__init__(message)
        self.message = message
        self.field = field
        self.retry_after_ms = retry_after_ms

    @property
    def number(self) -> int:
        """The google.rpc.Code of this error."""
        return int(self.code.value[0])


class InvalidArgument(DartspecError):
    """The caller sent something wrong; ``field`` names it."""

    code = grpc.StatusCode.INVALID_ARGUMENT

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message if message.startswith(field) else f"{field}: {message}", field=field)


class FailedPrecondition(DartspecError):
    """The request is well formed but does not fit this service."""

    code = grpc.StatusCode.FAILED_PRECONDITION


class NotFound(DartspecError):
    """A named thing does not exist."""

    code = grpc.StatusCode.NOT_FOUND


class ResourceExhausted(DartspecError):
    """Full now; ``retry_after_ms`` says when to try again."""

    code = grpc.StatusCode.RESOURCE_EXHAUSTED


class DeadlineExceeded(DartspecError):
    """The request's time is over."""

    code = grpc.StatusCode.DEADLINE_EXCEEDED


class Cancelled(DartspecError):
    """The caller went away."""

    code = grpc.StatusCode.CANCELLED


class Unavailable(DartspecError):
    """The other side cannot be reached; the same request may succeed later or elsewhere."""

    code = grpc.StatusCode.UNAVAILABLE


class Evicted(DartspecError):
    """The session was dropped to free memory; the request can be resumed."""

    code = grpc.StatusCode.ABORTED


class InternalError(DartspecError):
    """A fault of ours."""

    code = grpc.StatusCode.INTERNAL


_BY_NUMBER: dict[int, type[DartspecError]] = {
    int(cls.code.value[0]): cls
    for cls in (
        FailedPrecondition,
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
    if number == int(grpc.StatusCode.INVALID_ARGUMENT.value[0]):
        return InvalidArgument(field or "request", message)
    return _BY_NUMBER.get(number, InternalError)(message, field=field, retry_after_ms=retry_after_ms)
