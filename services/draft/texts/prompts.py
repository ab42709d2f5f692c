"""What the target answers: conversations, plain texts or token ids, from JSON Lines files."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dartspec.services.common.errors import InvalidArgument
from dartspec.services.draft.texts.lines import json_lines


@dataclass(frozen=True)
class Prompt:
    """One of three: ``messages`` (role, content) for the chat template, ``text`` as it is, or ``token_ids``."""

    messages: tuple[tuple[str, str], ...] = ()
    text: str = ""
    token_ids: tuple[int, ...] = ()

    @staticmethod
    def user(content: str) -> Prompt:
        """A conversation of one message."""
        return Prompt(messages=(("user", content),))

    @property
    def key(self) -> str:
        """Equal for equal prompts, the same in every process."""
        return json.dumps([self.messages, self.text, self.token_ids], ensure_ascii=False)

    @property
    def contents(self) -> list[str]:
        """The words in it, message by message."""
        return [content for _, content in self.messages] or [self.text]


def read_prompts(paths: Iterable[Path], plain: bool) -> list[Prompt]:
    """The prompts of JSON Lines files, in order, repetitions included.

    A line has "messages" ([{"role", "content"}, ...]), "turns" (the first is used) or "prompt"; with ``plain`` "turns"
    or "prompt", which are then texts to go on with. Raises InvalidArgument naming the line that has none, NotFound.
    """
    prompts: list[Prompt] = []
    for path in paths:
        before = len(prompts)
        for where, record in json_lines("--prompts", path):
            prompts.append(_parse(where, record, plain))
        if len(prompts) == before:
            raise InvalidArgument("--prompts", f"{path} holds no prompt")
    return prompts


def contents_of(flag: str, where: str, record: dict[str, Any]) -> list[str]:
    """All that is said in a record of a prompt file: every turn, every message but the model's own.

    Raises InvalidArgument when it is not such a record.
    """
    if "messages" in record:
        return [content for role, content in _messages(flag, where, record["messages"]) if role != "assistant"]
    turns = record["turns"] if "turns" in record else [record.get("prompt")]
    if not isinstance(turns, list) or not turns or not all(isinstance(turn, str) and turn.strip() for turn in turns):
        raise InvalidArgument(flag, f"{where}: has neither 'messages' nor 'turns' nor 'prompt' with text")
    return turns


def _parse(where: str, record: dict[str, Any], plain: bool) -> Prompt:
    contents = contents_of("--prompts", where, record)
    if "messages" not in record:
        return Prompt(text=contents[0]) if plain else Prompt.user(contents[0])
    if plain:
        raise InvalidArgument("--prompts", f"{where}: --plain takes 'prompt' or 'turns', not 'messages'")
    messages = _messages("--prompts", where, record["messages"])
    if messages[-1][0] == "assistant":
        raise InvalidArgument(
            "--prompts", f"{where}: the last message is the assistant's, so nothing is to be answered"
        )
    return Prompt(messages=messages)


def _messages(flag: str, where: str, value: Any) -> tuple[tuple[str, str], ...]:
    try:
        messages = tuple((message["role"], message["content"]) for message in value)
    except (TypeError, KeyError) as error:
        raise InvalidArgument(flag, f"{where}: 'messages' is no list of objects with 'role' and 'content'") from error
    if not messages or not all(isinstance(part, str) and part.strip() for message in messages for part in message):
        raise InvalidArgument(flag, f"{where}: 'messages' is empty, or one has no role or no content")
    return messages
