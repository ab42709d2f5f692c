"""Errors as that API tells them: {"error": {"message", "type", "param", "code"}} and an HTTP status."""

from __future__ import annotations

import math
import re
from typing import Any, NamedTuple

from dartspec.gateway.http.headers import PREFIX
from dartspec.gateway.route import REPLICA_KEY, ROUTING_KEY, TASK_KEY
from dartspec.services.common.errors import (
    Cancelled,
    DartspecError,
    DeadlineExceeded,
    Evicted,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    ResourceExhausted,
    Unauthenticated,
    Unavailable,
)

INVALID = "invalid_request_error"


class Kind(NamedTuple):
    """What that API says of an error."""

    status: int
    type: str
    code: str | None


INTERNAL = Kind(500, "server_error", "internal_error")
KINDS: dict[type, Kind] = {
    InvalidArgument: Kind(400, INVALID, None),
    FailedPrecondition: Kind(400, INVALID, None),
    Unauthenticated: Kind(401, INVALID, "invalid_api_key"),
    NotFound: Kind(404, INVALID, "not_found"),
    Cancelled: Kind(499, INVALID, "cancelled"),  # as nginx calls it; who went away does not read it
    ResourceExhausted: Kind(429, "rate_limit_error", "rate_limit_exceeded"),
    Evicted: Kind(503, "server_error", "unavailable"),
    Unavailable: Kind(503, "server_error", "unavailable"),
    DeadlineExceeded: Kind(504, "server_error", "deadline_exceeded"),
}

# How that API calls what our requests call otherwise.
_PARAMETERS = {
    "body": "",
    "text": "prompt",
    "token_ids": "prompt",
    "chat.template_arguments": "chat_template_kwargs",
    ROUTING_KEY: f"{PREFIX}{ROUTING_KEY}",
    REPLICA_KEY: f"{PREFIX}{REPLICA_KEY}",
    TASK_KEY: f"{PREFIX}{TASK_KEY}",
}


def body(message: str, kind: Kind, param: str | None) -> dict[str, Any]:
    """An error's JSON."""
    return {"error": {"message": message, "type": kind.type, "param": param, "code": kind.code}}


def kind_of(error: DartspecError) -> Kind:
    """Its status, type and code."""
    kind = next((KINDS[each] for each in type(error).__mro__ if each in KINDS), INTERNAL)
    return kind._replace(code="model_not_found") if kind.status == 404 and error.field == "model" else kind


def error_body(error: DartspecError) -> dict[str, Any]:
    """The JSON of an error; the field has the name by which the client knows it, in the message too."""
    param = parameter(error.field)
    message = error.message
    if param and message.startswith(f"{error.field}:"):
        message = f"{param}{message[len(error.field) :]}"
    return body(message, kind_of(error), param or None)


def error_headers(error: DartspecError) -> dict[str, str]:
    """When to try again, in seconds as HTTP has it, and in milliseconds as clients of that API read it."""
    if not error.retry_after_ms:
        return {}
    return {"Retry-After": str(math.ceil(error.retry_after_ms / 1e3)), "retry-after-ms": str(error.retry_after_ms)}


def parameter(field: str) -> str:
    """sampling.top_p -> top_p, chat.messages[0].role -> messages[0].role, text -> prompt."""
    if field in _PARAMETERS:
        return _PARAMETERS[field]
    if field == "chat":
        return "messages"
    return re.sub(r"^(sampling|chat)\.", "", field)
