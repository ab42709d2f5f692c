"""Our own engine as the writer of texts to train on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dartspec.services.common.machine import native_dtype, read_machine
from dartspec.services.common.types import Sampling
from dartspec.services.draft.convert_gguf import PACKAGED_MODEL, resolve_model
from dartspec.services.draft.texts.own_prompts import PROBES, common_prefix
from dartspec.services.draft.texts.plan import Job
from dartspec.services.draft.texts.prompts import Prompt
from dartspec.services.draft.texts.settings import GenerateSettings
from dartspec.services.draft.texts.tokenizer import TextTokenizer
from dartspec.services.draft.texts.write import TargetName, Written
from dartspec.services.verifier.config import VerifierSettings
from dartspec.services.verifier.messages import Finish
from dartspec.services.verifier.offline import OfflineStream, Question, started_engine

# Below this an answer has nothing that a draft could be compared with.
LEAST_ANSWER = 2


class EngineWriter:
    """Writes at most ``rows`` texts at a time; a prompt is cut into tokens when there is room for it."""

    def __init__(
        self,
        stream: OfflineStream,
        tokenizer: TextTokenizer,
        target: TargetName,
        limits: tuple[int, int, int],
        template_arguments: Mapping[str, Any],
    ) -> None:
        self._stream, self._tokenizer = stream, tokenizer
        self._rows, self._max_new, self._capacity = limits
        self._arguments = template_arguments
        self.target = target

    def chat_prefix(self) -> tuple[int, ...]:
        """Token ids up to where a user's message begins."""
        return common_prefix(*(self._tokenizer.prompt_ids(Prompt.user(text), self._arguments) for text in PROBES))

    def write(self, jobs: Iterable[Job]) -> Iterator[Written]:
        """Texts as they are finished."""
        asked: list[tuple[Job, list[int]]] = []
        too_long: list[Written] = []

        def questions() -> Iterator[Question]:
            for job in jobs:
                prompt = self._tokenizer.prompt_ids(job.prompt, self._arguments)
                room = min(self._max_new, self._capacity - len(prompt))
                if room < LEAST_ANSWER:
                    too_long.append(Written(job, prompt, (), "", ended=False))
                    continue
                asked.append((job, prompt))
                yield Question(prompt, Sampling(job.temperature, max_tokens=room), job.seed)

        for answer in self._stream.answers(questions(), self._rows):
            job, prompt = asked[answer.question]
            asked[answer.question] = (job, [])
            ended = answer.finish is Finish.STOP
            text = self._tokenizer.decode(answer.token_ids)
            yield Written(job, prompt, answer.token_ids, text, ended)
            while too_long:
                yield too_long.pop()
        yield from too_long


@contextmanager
def engine_writer(settings: GenerateSettings) -> Iterator[EngineWriter]:
    """Load the target and start its engine for as long as the block runs."""
    model = settings.model or PACKAGED_MODEL
    dtype = settings.dtype if settings.dtype != "auto" else native_dtype(read_machine(), settings.device)[0]
    tokenizer = TextTokenizer(resolve_model(model, settings.revision or None))
    replica, engine = started_engine(
        VerifierSettings(
            model=model,
            revision=settings.revision,
            head="none",
            device=settings.device,
            dtype=dtype,
            budget="fixed:0",
            max_sessions=settings.rows,
            memory=settings.memory,
            threads=settings.threads,
            invariant=settings.invariant,
        )
    )
    target = TargetName(
        Path(model).name,
        replica.hello.model_fingerprint,
        replica.hello.tokenizer_fingerprint,
        replica.description.dtype,
    )
    capacity = min(settings.capacity, replica.description.context_length)
    limits = (settings.rows, settings.max_new, capacity)
    try:
        yield EngineWriter(OfflineStream(engine), tokenizer, target, limits, settings.template_arguments)
    finally:
        engine.stop()
