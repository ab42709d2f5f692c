"""The two forms of the API, chats and text completions: how a body is read and how answers are written."""

from __future__ import annotations

from typing import Any, Protocol

from dartspec.gateway.detokenize import Vocabulary
from dartspec.gateway.http.fields import Fields, integer, kind, string
from dartspec.gateway.http.logprobs import ChatLogprobs, TextLogprobs
from dartspec.gateway.http.parameters import UINT32, Wanted, read_wanted
from dartspec.gateway.request import Input
from dartspec.services.common.errors import InvalidArgument
from dartspec.services.common.sampling_rules import MAX_TOP_LOGPROBS

TEXT_MAX_TOKENS = 16  # the API's own default for text completions; chats have the server's


class Dialect(Protocol):
    """What differs between the forms."""

    prefix: str  # of the answer's id
    whole: str  # the object's name, whole and in a stream
    part: str

    def read(self, fields: Fields) -> Wanted:
        """The body's request. Raises InvalidArgument naming a field."""
        ...

    def logprobs(self, vocabulary: Vocabulary) -> ChatLogprobs | TextLogprobs:
        """For one choice."""
        ...

    def message(self, text: str) -> dict[str, Any]:
        """A whole choice's text."""
        ...

    def opening(self) -> dict[str, Any] | None:
        """What begins a choice in a stream."""
        ...

    def delta(self, text: str) -> dict[str, Any]:
        """A piece of a choice's text in a stream."""
        ...

    def closing(self) -> dict[str, Any]:
        """What ends a choice in a stream."""
        ...


class ChatDialect:
    """/v1/chat/completions."""

    prefix = "chatcmpl-"
    whole = "chat.completion"
    part = "chat.completion.chunk"

    def read(self, fields: Fields) -> Wanted:
        messages = tuple(_read_message(index, message) for index, message in enumerate(fields.array("messages")))
        prompt = Input(messages=messages, template_arguments=fields.object("chat_template_kwargs"))
        logprobs = fields.flag("logprobs")
        top = fields.integer("top_logprobs", 0, MAX_TOP_LOGPROBS) or 0
        if top and not logprobs:
            raise InvalidArgument("top_logprobs", "goes with logprobs only")
        old, new = (fields.integer(name, 0, UINT32) for name in ("max_tokens", "max_completion_tokens"))
        if old is not None and new is not None and old != new:
            raise InvalidArgument("max_tokens", f"{old} contradicts max_completion_tokens, {new}")
        max_tokens = old if new is None else new
        return read_wanted(fields, [prompt], logprobs=logprobs, top_logprobs=top, max_tokens=max_tokens)

    def logprobs(self, vocabulary: Vocabulary) -> ChatLogprobs:
        return ChatLogprobs(vocabulary)

    def message(self, text: str) -> dict[str, Any]:
        return {"message": {"role": "assistant", "content": text, "refusal": None}}

    def opening(self) -> dict[str, Any]:
        return {"delta": {"role": "assistant", "content": ""}}

    def delta(self, text: str) -> dict[str, Any]:
        return {"delta": {"content": text}}

    def closing(self) -> dict[str, Any]:
        return {"delta": {}}


class TextDialect:
    """/v1/completions."""

    prefix = "cmpl-"
    whole = "text_completion"
    part = "text_completion"

    def read(self, fields: Fields) -> Wanted:
        prompts = _read_prompts(fields.take("prompt"))
        shown = fields.integer("logprobs", 0, MAX_TOP_LOGPROBS)
        max_tokens = fields.integer("max_tokens", 0, UINT32)
        return read_wanted(
            fields,
            prompts,
            logprobs=shown is not None,
            top_logprobs=shown or 0,
            max_tokens=TEXT_MAX_TOKENS if max_tokens is None else max_tokens,
        )

    def logprobs(self, vocabulary: Vocabulary) -> TextLogprobs:
        return TextLogprobs(vocabulary)

    def message(self, text: str) -> dict[str, Any]:
        return {"text": text}

    def opening(self) -> None:
        return None

    def delta(self, text: str) -> dict[str, Any]:
        return {"text": text}

    def closing(self) -> dict[str, Any]:
        return {"text": ""}


def _read_message(index: int, message: Any) -> dict[str, str]:
    name = f"messages[{index}]"
    if not isinstance(message, dict):
        raise InvalidArgument(name, f"must be an object, got {kind(message)}")
    content = message.get("content")
    # What an earlier answer of the API holds is sent back with fields that are empty.
    others = {key: value for key, value in message.items() if key != "content" and value not in ("", [], {})}
    fields = Fields(others, name)
    role = fields.string("role")
    fields.end()
    return {"role": role, "content": _read_content(f"{name}.content", content)}


def _read_content(name: str, content: Any) -> str:
    if content is None:
        raise InvalidArgument(name, "must be set")
    if isinstance(content, list):
        return "".join(_read_part(f"{name}[{index}]", part) for index, part in enumerate(content))
    return string(name, content)


def _read_part(name: str, part: Any) -> str:
    if not isinstance(part, dict) or part.get("type") != "text":
        raise InvalidArgument(name, 'must be an object of type "text"; text is all that is read')
    return string(f"{name}.text", part.get("text"))


def _read_prompts(prompt: Any) -> list[Input]:
    """A string, token ids, or an array of either."""
    if prompt is None:
        raise InvalidArgument("prompt", "must be set")
    if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int | float):
        return [_read_prompt(f"prompt[{index}]", each) for index, each in enumerate(prompt)]
    return [_read_prompt("prompt", prompt)]


def _read_prompt(name: str, prompt: Any) -> Input:
    if isinstance(prompt, list):
        return Input(token_ids=tuple(integer(f"{name}[{i}]", token, 0, UINT32) for i, token in enumerate(prompt)))
    if not isinstance(prompt, str):
        raise InvalidArgument(name, f"must be a string or token ids, got {kind(prompt)}")
    return Input(text=string(name, prompt))
