"""What a build has read: where to go on after a kill, and what the manifest says in the end."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dartspec.services.ngram.batch import Batch
from dartspec.services.ngram.inputs import Source

# Files that the manifest names one by one; all are in its checksum.
MAX_NAMED = 100


@dataclass
class Tally:
    """Files read to the end, and the state of the one being read. Saved with each batch."""

    source: int = 0
    document: int = 0
    documents: int = 0
    files: int = 0
    digest: str = ""
    shards: list[dict[str, Any]] = field(default_factory=list)
    # Totals when the current file began.
    documents_before: int = 0
    tokens_before: int = 0

    @classmethod
    def parse(cls, position: str) -> Tally:
        """From what :meth:`position` made; "" is the start."""
        return cls(**json.loads(position)) if position else cls()

    def position(self) -> str:
        """This state as text."""
        return json.dumps(dataclasses.asdict(self))

    def add(self, batch: Batch) -> None:
        """A batch was read."""
        self.document = batch.next_document
        self.documents += batch.finished

    def close(self, source: Source, tokens: int) -> None:
        """The current file is at its end; ``tokens`` of all files so far."""
        checksum = _sha256(source.path)
        made = {
            "name": source.name,
            "sha256": checksum,
            "documents": self.documents - self.documents_before,
            "tokens": tokens - self.tokens_before,
        }
        if len(self.shards) < MAX_NAMED:
            self.shards.append(made)
        self.digest = hashlib.sha256(f"{self.digest}\n{source.name}\n{checksum}".encode()).hexdigest()
        self.files += 1
        self.source, self.document = source.number + 1, 0
        self.documents_before, self.tokens_before = self.documents, tokens

    def manifest(self, tokens: int) -> dict[str, Any]:
        """Totals, the first files, and a checksum of the names and contents of all."""
        totals = {"documents": self.documents, "tokens": tokens, "files": self.files, "sha256": self.digest}
        return {**totals, "shards": self.shards}


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
