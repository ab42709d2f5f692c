"""Whether a text holds an evaluation prompt. The rule is in `LeakCheck`; docs/draft-data.md explains it. Pure."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from dartspec.services.draft.texts.lines import files_of, json_lines
from dartspec.services.draft.texts.prompts import contents_of

# As many common words in a row show that one text was made from the other.
SHARED_WORDS = 13
# A shorter evaluation prompt is a phrase that anybody may use; it only counts when it is all that is said.
LEAST_WORDS = 4
REASONS = ("equal", "contains", "shares")

_WORD = re.compile(r"[^\W_]+")


def words_of(text: str) -> tuple[str, ...]:
    """Runs of letters and digits, in compatibility form (NFKC) and without case."""
    return tuple(_WORD.findall(unicodedata.normalize("NFKC", text).casefold()))


class LeakCheck:
    """Compares texts with evaluation prompts, word by word.

    "equal": the words are those of an evaluation prompt. "contains": somewhere in a row they are those of one that has
    at least `LEAST_WORDS`. "shares": `SHARED_WORDS` in a row are also in a row in one.
    """

    def __init__(self, evaluation: Iterable[str]) -> None:
        self._whole = {words for text in evaluation if (words := words_of(text))}
        # By their number of words: prompts too short to have a shared run, and the runs of the others.
        self._parts: dict[int, set[tuple[str, ...]]] = {}
        for words in self._whole:
            if LEAST_WORDS <= len(words) < SHARED_WORDS:
                self._parts.setdefault(len(words), set()).add(words)
            for start in range(len(words) - SHARED_WORDS + 1):
                self._parts.setdefault(SHARED_WORDS, set()).add(words[start : start + SHARED_WORDS])

    def __len__(self) -> int:
        return len(self._whole)

    def reason(self, text: str) -> str | None:
        """The first of `REASONS` that holds for a text; None when it is clean.

        A long evaluation prompt inside a text counts as shared, since its runs are.
        """
        words = words_of(text)
        if words in self._whole:
            return "equal"
        for length, parts in sorted(self._parts.items()):
            if any(words[start : start + length] in parts for start in range(len(words) - length + 1)):
                return "shares" if length == SHARED_WORDS else "contains"
        return None

    def first_reason(self, texts: Iterable[str]) -> str | None:
        """`reason` of the first text that has one."""
        return next((reason for text in texts if (reason := self.reason(text))), None)


def read_evaluation(paths: Iterable[Path]) -> tuple[LeakCheck, list[Path]]:
    """The check against prompt files or directories of them, and the files that were read.

    Every turn of a conversation counts. Raises InvalidArgument or NotFound naming the file and the line.
    """
    files = files_of("--exclude", paths)
    texts = [
        content
        for file in files
        for where, record in json_lines("--exclude", file)
        for content in contents_of("--exclude", where, record)
    ]
    return LeakCheck(texts), files


def counted(reasons: Iterable[str]) -> dict[str, int]:
    """How often each reason occurs, all of them named."""
    counts = Counter(reasons)
    return {reason: counts[reason] for reason in REASONS}
