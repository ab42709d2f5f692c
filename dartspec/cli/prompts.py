"""Prompt files: JSON Lines, one prompt a line."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dartspec.services.common.errors import InvalidArgument, NotFound


@dataclass(frozen=True)
class Prompt:
    """What to answer. ``name`` tells it from others in reports."""

    name: str
    text: str


def read_prompts(path: Path, limit: int | None = None) -> list[Prompt]:
    """The first ``limit`` prompts of a file whose objects hold ``turns`` (the first is used) or ``prompt``.

    An ``id`` names the prompt, else its line number does. Raises NotFound without the file, InvalidArgument with the
    line number of the first line that is not a prompt.
    """
    try:
        lines = path.read_text(encoding="utf-8").split("\n")  # str.splitlines also splits where JSON does not: U+2028
    except (OSError, UnicodeDecodeError) as error:
        raise NotFound(f"--prompts {path}: cannot be read: {error}") from error
    numbered = [(number, line) for number, line in enumerate(lines, start=1) if line.strip()]
    prompts = [_parse(path, number, line) for number, line in numbered[:limit]]
    if not prompts:
        raise InvalidArgument("--prompts", f"{path} holds no prompt")
    return prompts


def _parse(path: Path, number: int, line: str) -> Prompt:
    try:
        value: Any = json.loads(line)
    except json.JSONDecodeError as error:
        raise InvalidArgument("--prompts", f"{path}, line {number}: not JSON: {error}") from error
    turns = value.get("turns") if isinstance(value, dict) else None
    text = turns[0] if isinstance(turns, list) and turns else value.get("prompt") if isinstance(value, dict) else None
    if not isinstance(text, str) or not text:
        raise InvalidArgument("--prompts", f"{path}, line {number}: has neither 'turns' nor 'prompt' with text")
    return Prompt(str(value.get("id", number)), text)
