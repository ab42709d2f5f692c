"""A client's request, free of protobuf except for the sampling that is still to be completed."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dartspec.gateway.prompt import PromptBuilder
from dartspec.gateway.route import ANYWHERE, Route
from dartspec.gateway.types import Mode
from dartspec.services.common.errors import InvalidArgument
from dartspec.v1 import common_pb2

MAX_REQUEST_ID = 128


@dataclass(frozen=True)
class Input:
    """Exactly one of messages, text and token_ids is not None."""

    messages: tuple[Mapping[str, str], ...] | None = None
    template_arguments: Mapping[str, Any] = field(default_factory=dict)
    text: str | None = None
    token_ids: tuple[int, ...] | None = None

    @property
    def field_name(self) -> str:
        """What errors about the prompt name."""
        return "chat" if self.messages is not None else "text" if self.text is not None else "token_ids"

    async def prompt(self, prompts: PromptBuilder) -> list[int]:
        """The prompt's tokens. Raises InvalidArgument naming the field."""
        if self.messages is not None:
            return await prompts.from_chat(self.messages, self.template_arguments)
        if self.text is not None:
            return await prompts.from_text(self.text)
        return prompts.from_ids(self.token_ids or ())


@dataclass(frozen=True)
class Request:
    """One answer wanted; absent values are None or empty and filled in when the model is known.

    traceparent: the caller's span, as W3C's header of that name has it.
    """

    model: str
    input: Input
    committed_token_ids: tuple[int, ...]
    sampling: common_pb2.Sampling
    seed: int | None
    stop: tuple[str, ...]
    mode: Mode
    request_id: str
    route: Route = ANYWHERE
    traceparent: str = ""


def checked_request_id(request_id: str) -> str:
    """The id, or a new one for an empty id. Raises InvalidArgument for one that would spoil logs."""
    if len(request_id) > MAX_REQUEST_ID or not request_id.isprintable():
        raise InvalidArgument("request_id", f"at most {MAX_REQUEST_ID} printable characters")
    return request_id or uuid.uuid4().hex
