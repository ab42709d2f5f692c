"""The loop of a run: jobs to a writer, texts to a store, progress to whoever watches."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from tqdm import tqdm

from dartspec.services.draft.texts.plan import Job
from dartspec.services.draft.texts.store import Record, TextStore

# Records whose texts become prompts also hold the answer as text, if the target ended it.
TEXT = "text"
# Between two states of the progress bar, on a terminal and in a log.
_REDRAW_SECONDS, _LINE_SECONDS = 0.5, 15.0


@dataclass(frozen=True)
class Written:
    """A finished text. No ``answer_ids``: the prompt leaves no room. text: the answer without special tokens.

    ended: the target ended it, with the last of ``answer_ids``; else it reached its longest length.
    """

    job: Job
    prompt_ids: Sequence[int]
    answer_ids: Sequence[int]
    text: str
    ended: bool


@dataclass(frozen=True)
class TargetName:
    """What a manifest says of the target; fingerprints as in `Hello`; what is not known is empty."""

    name: str
    fingerprint: str
    tokenizer_fingerprint: str
    dtype: str


class Writer(Protocol):
    """The target, by whichever way."""

    @property
    def target(self) -> TargetName:
        """Who writes."""

    def chat_prefix(self) -> tuple[int, ...]:
        """Token ids up to where a user's message begins in a conversation."""

    def write(self, jobs: Iterable[Job]) -> Iterator[Written]:
        """Texts in the order in which they are finished; the jobs are taken as there is room for them."""


def write_texts(jobs: Sequence[Job], writer: Writer, store: TextStore, label: str, with_text: bool = False) -> None:
    """Write the jobs that the store lacks, and complete its shards. with_text: keep answers as text, see `TEXT`."""
    left = [job for job in jobs if not store.finished(job.index)]
    tokens = 0
    pause = _REDRAW_SECONDS if sys.stderr.isatty() else _LINE_SECONDS
    begun = len(jobs) - len(left)
    with tqdm(total=len(jobs), initial=begun, desc=label, unit="text", smoothing=0.05, mininterval=pause) as bar:
        for written in writer.write(left):
            store.add(_record(written, with_text))
            tokens += len(written.answer_ids)
            bar.set_postfix_str(f"{tokens / max(bar.format_dict['elapsed'], 1e-9):,.0f} tokens/s", refresh=False)
            bar.update()
    store.close_shards()


def _record(written: Written, with_text: bool) -> Record:
    record: Record = {
        "i": written.job.index,
        "t": written.job.temperature,
        "p": list(written.prompt_ids),
        "o": list(written.answer_ids),
    }
    if with_text and written.ended:
        record[TEXT] = written.text
    return record
