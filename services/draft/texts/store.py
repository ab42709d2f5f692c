"""Where the texts of a run go: shards of equal size, complete or not there, and a journal of what is not in one yet.

OUT/part-00000.jsonl.gz, ... hold the texts in the order of their index, each renamed into place when it is full; only
the last one may hold fewer. OUT/journal.jsonl has a line for every finished text that is not in a shard, written
when the text is finished, so that a run that is killed loses the texts in progress only. A text's place depends on
nothing but its index, and so the shards are the same bytes however often the run was ended and continued.
"""

from __future__ import annotations

import fcntl
import gzip
import hashlib
import io
import json
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from dartspec.services.common.errors import FailedPrecondition
from dartspec.services.draft.texts.lines import open_text

JOURNAL = "journal.jsonl"
# Why a text that was written is in no shard.
DUPLICATE, TOO_LONG = "duplicate", "too_long"

Record = dict[str, Any]


def part_paths(directory: Path) -> list[Path]:
    """The shards of a directory, in order."""
    return sorted(directory.glob("part-*.jsonl.gz"))


def read_records(path: Path) -> Iterator[Record]:
    """The records of one shard. Raises FailedPrecondition for a damaged one."""
    try:
        with open_text(path) as lines:
            for line in lines:
                yield json.loads(line)
    except (OSError, EOFError, ValueError) as error:
        raise FailedPrecondition(
            f"{path} is damaged: {error}; delete it and those after it to write them anew"
        ) from error


class TextStore:
    """The texts 0, 1, ... of a run in a directory that no other process writes to. Use as a context manager.

    A record is {"i": index, "t": temperature, "p": prompt ids, "o": answer ids}; one without answer ids is left out as
    too long, one whose tokens are those of an earlier text as a duplicate. tokens: answer ids in the shards.
    """

    def __init__(self, directory: Path, per_shard: int) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory, self._per_shard = directory, per_shard
        self._lock = os.open(directory, os.O_RDONLY)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._lock)
            raise FailedPrecondition(
                f"--out {directory}: another process writes there; wait for it or end it"
            ) from error
        self.dropped: Counter[str] = Counter()
        self.texts = self.tokens = self.prompt_tokens = 0
        self._seen: set[bytes] = set()
        self._left_out: list[Record] = []  # markers {"i", "drop"} of what is in no shard
        self._full: list[Record] = []  # of the next shard, in order
        self._ahead: dict[int, Record] = {}  # finished before one with a smaller index
        self._next = 0  # the smallest index that is not finished
        self._parts = 0
        self._journal: IO[str] | None = None
        try:
            self._load()
            self._rewrite_journal()
        except BaseException:
            os.close(self._lock)
            raise

    def __enter__(self) -> TextStore:
        return self

    def __exit__(self, *exc_info: object) -> None:
        assert self._journal is not None
        self._journal.close()
        journal = self._directory / JOURNAL
        if not journal.stat().st_size:
            journal.unlink()
        os.close(self._lock)

    def finished(self, index: int) -> bool:
        """The text with this index is in a shard or in the journal, or was left out."""
        return index < self._next or index in self._ahead

    def add(self, record: Record) -> None:
        """A text is finished."""
        assert self._journal is not None
        self._journal.write(_line(record))
        self._journal.flush()
        self._ahead[record["i"]] = record
        self._take()

    def close_shards(self) -> None:
        """All texts are finished: write the last shard."""
        assert not self._ahead
        if self._full:
            self._write_part()
        else:
            self._rewrite_journal()  # of texts that were left out, only that they were

    def records(self) -> Iterator[Record]:
        """All records in shards."""
        for path in part_paths(self._directory):
            yield from read_records(path)

    def _load(self) -> None:
        stored: set[int] = set()
        for number, path in enumerate(part_paths(self._directory)):
            if path.name != _part_name(number):
                raise FailedPrecondition(
                    f"--out {self._directory}: {_part_name(number)} is missing, {path.name} is there"
                )
            for record in read_records(path):
                self._count_in(record)
                stored.add(record["i"])
            self._parts = number + 1
        self._next = max(stored, default=-1) + 1
        for record in self._read_journal():
            index = record["i"]
            if index >= self._next:
                self._ahead[index] = record
            elif index not in stored:
                self._leave_out(index, record.get("drop") or (DUPLICATE if record["o"] else TOO_LONG))
        self._take()

    def _read_journal(self) -> Iterator[Record]:
        path = self._directory / JOURNAL
        if not path.exists():
            return
        with path.open("rb") as lines:
            for line in lines:
                if not line.endswith(b"\n"):  # torn by a kill
                    return
                yield json.loads(line)

    def _take(self) -> None:
        """Move on over what is finished; write the shards that are full."""
        while (record := self._ahead.pop(self._next, None)) is not None:
            if "drop" in record:
                self._leave_out(self._next, record["drop"])
            elif not record["o"]:
                self._leave_out(self._next, TOO_LONG)
            elif _digest(record) in self._seen:
                self._leave_out(self._next, DUPLICATE)
            else:
                self._count_in(record)
                self._full.append(record)
            self._next += 1
            if len(self._full) == self._per_shard:
                self._write_part()

    def _count_in(self, record: Record) -> None:
        self._seen.add(_digest(record))
        self.texts += 1
        self.tokens += len(record["o"])
        self.prompt_tokens += len(record["p"])

    def _leave_out(self, index: int, reason: str) -> None:
        self._left_out.append({"i": index, "drop": reason})
        self.dropped[reason] += 1

    def _write_part(self) -> None:
        packed = io.BytesIO()
        # Without name and time, so that equal texts make equal bytes.
        with gzip.GzipFile(filename="", mode="wb", fileobj=packed, mtime=0) as file:
            file.write("".join(map(_line, self._full)).encode())
        write_whole(self._directory / _part_name(self._parts), packed.getvalue())
        self._parts += 1
        self._full = []
        if self._journal is not None:
            self._rewrite_journal()

    def _rewrite_journal(self) -> None:
        """Leave what is in no shard in the journal, which is open for more after that."""
        if self._journal is not None:
            self._journal.close()
        path = self._directory / JOURNAL
        kept = [*self._left_out, *self._full, *self._ahead.values()]
        write_whole(path, "".join(map(_line, kept)).encode())
        self._journal = path.open("a", encoding="utf-8")


def write_whole(path: Path, content: bytes) -> None:
    """Write a file that is there completely or not at all, whatever happens."""
    temporary = path.with_name(f".{path.name}.tmp")
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def _part_name(number: int) -> str:
    return f"part-{number:05d}.jsonl.gz"


def _line(record: Record) -> str:
    return json.dumps(record, separators=(",", ":"), ensure_ascii=False) + "\n"


def _digest(record: Record) -> bytes:
    return hashlib.blake2b(json.dumps(record["p"] + record["o"]).encode(), digest_size=16).digest()
