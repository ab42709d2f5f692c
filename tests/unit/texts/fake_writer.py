"""A writer that answers from digests, and what a run of it is called with."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from dartspec.services.draft.texts.plan import Job
from dartspec.services.draft.texts.settings import GenerateSettings
from dartspec.services.draft.texts.write import TargetName, Written
from tests.toy import mix

PREFIX = (90, 91)


@dataclass
class FakeWriter:
    """Own prompts are "own question N of ..." with N out of ten, every fifth never ends; answers are three tokens."""

    target: TargetName = field(default_factory=lambda: TargetName("fake", "f" * 8, "t" * 8, "float32"))
    opened: int = 0
    written: int = 0
    fails_after: int | None = None

    def chat_prefix(self) -> tuple[int, ...]:
        return PREFIX

    def write(self, jobs: Iterable[Job]) -> Iterator[Written]:
        for job in jobs:
            if self.written == self.fails_after:
                raise KeyboardInterrupt
            self.written += 1
            number = mix(job.prompt.key, job.temperature, job.seed) % 10
            if job.prompt.token_ids:
                yield Written(job, job.prompt.token_ids, [number, 99], f"own question {number} of ten", number % 5 > 0)
            else:
                yield Written(job, [len(job.prompt.key)], [job.seed % 1000, number, 99], "answer", ended=True)

    @contextmanager
    def open(self, settings: GenerateSettings) -> Iterator[FakeWriter]:
        self.opened += 1
        yield self
