"""Text documents: plain files, lines, JSON lines with a field or chat messages, Parquet columns."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from dartspec.services.common.errors import InvalidArgument
from dartspec.services.ngram.inputs import Reading, Source
from dartspec.services.ngram.lines import numbered_lines, read_start

# A document is held as a whole; larger files must be cut into lines or files.
MAX_FILE_BYTES = 64 << 20


@dataclass(frozen=True)
class Document:
    """Texts of document ``number`` of a file, and the bytes of the file read up to its end.

    A chat has one text a message, so that no n-gram spans two of them: what stands between is the chat template's.
    """

    number: int
    texts: list[str]
    done: int


def read_text(source: Source, reading: Reading, skip: int) -> Iterator[Document]:
    """The documents that this job takes, after the first ``skip``. Raises InvalidArgument naming the file and line."""
    if source.kind == "text":
        if skip == 0 and reading.takes(source.number, 0):
            yield Document(0, [_whole(source)], source.bytes)
        return
    number = 0
    for line_number, line, done in numbered_lines(source.path):
        if not line.strip():
            continue
        if number >= skip and reading.takes(source.number, number):
            where = f"{source.path}:{line_number}"
            text = _decoded(line, where)
            texts = json_texts(text, reading.field, where) if source.kind == "text-jsonl" else [text]
            yield Document(number, texts, done)
        number += 1


def _whole(source: Source) -> str:
    data = read_start(source.path, MAX_FILE_BYTES + 1)
    if len(data) > MAX_FILE_BYTES:
        message = (
            f"{source.path} has more than the {MAX_FILE_BYTES} bytes of one document; "
            "give --lines if each line is one, or split it"
        )
        raise InvalidArgument("inputs", message)
    return _decoded(data, str(source.path))


def _decoded(data: bytes, where: str) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidArgument("inputs", f"{where} is not text in UTF-8: {error}") from error


def json_texts(line: str, field: str, where: str) -> list[str]:
    """The texts of one JSON line: what stands under ``field``, or the contents of ``messages``."""
    try:
        value = json.loads(line)
    except ValueError as error:
        raise InvalidArgument("inputs", f"{where} is not JSON: {error}") from error
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        for name in (field, "messages"):
            if name in value:
                return field_texts(value[name], f"`{name}` of {where}")
        raise InvalidArgument("--field", f"{where} has no `{field}`, only {', '.join(sorted(value)) or 'nothing'}")
    raise InvalidArgument("inputs", f"{where} must hold an object with `{field}` or a string")


def field_texts(value: Any, where: str) -> list[str]:
    """A text, or the contents of chat messages."""
    if value is None:
        return []
    if isinstance(value, str):
        return [value]
    if isinstance(value, list) and all(isinstance(message, dict) for message in value):
        return [text for message in value for text in _contents(message.get("content"), where)]
    raise InvalidArgument("inputs", f"{where} must be a text or chat messages, got {type(value).__name__}")


def _contents(content: Any, where: str) -> list[str]:
    """A message's text, or the texts of its parts; pictures and calls have none."""
    if content is None or isinstance(content, str):
        return [content] if content else []
    if isinstance(content, list) and all(isinstance(part, dict) for part in content):
        return [part["text"] for part in content if isinstance(part.get("text"), str)]
    raise InvalidArgument("inputs", f"{where}: a message's content must be a text or a list of parts")
