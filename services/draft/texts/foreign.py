"""Text that somebody else wrote, in the target's tokens: enough for a first phase of training, where the teacher's
distributions matter and not who chose the tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from tqdm import tqdm

from dartspec.services.common.errors import InvalidArgument, NotFound
from dartspec.services.draft.texts.leaks import LeakCheck
from dartspec.services.draft.texts.lines import JSONL_SUFFIXES, files_of, json_lines, open_text
from dartspec.services.draft.texts.store import TextStore

SUFFIXES = (*JSONL_SUFFIXES, ".txt", ".txt.gz")
# Nobody drew these tokens; no evaluation takes them for the target's own choice at temperature 0.
TEMPERATURE = 1.0
# A prompt of one token and the shortest answer that can be learnt from.
LEAST_TOKENS = 3

Encode = Callable[[str], Sequence[int]]


def documents(files: Iterable[Path]) -> Iterator[str]:
    """The documents of .jsonl files ("text" of each line) and of .txt files (one each), blank ones left out.

    Raises InvalidArgument for a file of another kind or a line without text.
    """
    for path in files:
        if path.name.endswith(JSONL_SUFFIXES):
            for where, record in json_lines("--foreign", path):
                if not isinstance(record.get("text"), str):
                    raise InvalidArgument("--foreign", f"{where}: has no 'text'")
                if record["text"].strip():
                    yield record["text"]
        elif path.name.endswith(SUFFIXES):
            try:
                with open_text(path) as file:
                    text = file.read()
            except (OSError, EOFError, UnicodeDecodeError) as error:
                raise NotFound(f"--foreign {path}: cannot be read: {error}") from error
            if text.strip():
                yield text
        else:
            raise InvalidArgument("--foreign", f"{path} ends in none of {', '.join(SUFFIXES)}")


def foreign_files(paths: Iterable[Path]) -> list[Path]:
    """The files themselves, and those of directories."""
    return files_of("--foreign", paths, SUFFIXES)


def cut_into_texts(
    files: Iterable[Path], encode: Encode, check: LeakCheck | None, capacity: int, store: TextStore
) -> list[str]:
    """Put documents into a store, cut every ``capacity`` tokens, each part with one token as prompt.

    Documents that hold an evaluation prompt are left out; returns why each was.
    """
    leaks: list[str] = []
    index = 0
    for document in tqdm(documents(files), desc="foreign", unit="document"):
        if check is not None and (reason := check.reason(document)) is not None:
            leaks.append(reason)
            continue
        tokens = list(encode(document))
        for start in range(0, len(tokens), capacity):
            part = tokens[start : start + capacity]
            if len(part) >= LEAST_TOKENS:
                if not store.finished(index):
                    store.add({"i": index, "t": TEMPERATURE, "p": part[:1], "o": part[1:]})
                index += 1
    store.close_shards()
    return leaks
