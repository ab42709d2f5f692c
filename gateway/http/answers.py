"""Answers written as that API wants them: one JSON object, or pieces of a stream."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from dartspec.gateway.http.dialects import Dialect
from dartspec.gateway.http.logprobs import ChatLogprobs, TextLogprobs
from dartspec.gateway.http.parameters import Wanted
from dartspec.gateway.model import Model
from dartspec.gateway.types import Chunk, Finish, Start

# (index of the choice, a part of its answer)
Messages = AsyncGenerator[tuple[int, Start | Chunk | Finish], None]


@dataclass
class Choice:
    """One choice as far as it has come."""

    start: Start | None = None
    finish: Finish | None = None
    texts: list[str] = field(default_factory=list)
    logprobs: list[dict[str, Any]] = field(default_factory=list)


class Writer:
    """Writes the choices of one call."""

    def __init__(self, dialect: Dialect, wanted: Wanted, models: Callable[[str], Model]) -> None:
        """``models`` finds the model that an answer's start names."""
        self._dialect = dialect
        self._wanted = wanted
        self._models = models
        self._choices = [Choice() for _ in wanted.requests]
        self._logprobs: dict[int, ChatLogprobs | TextLogprobs] = {}  # by index of the choice
        self._head: dict[str, Any] = {"id": f"{dialect.prefix}{wanted.request_id}", "created": int(time.time())}

    async def whole(self, messages: Messages) -> dict[str, Any]:
        """All answers to their end."""
        async for index, message in messages:
            choice = self._choices[index]
            match message:
                case Start():
                    self._begin(index, message)
                case Chunk():
                    choice.texts.append(message.text)
                    if self._wanted.logprobs:
                        choice.logprobs.append(self._logprobs[index].show(message))
                case Finish():
                    choice.finish = message
        choices = [self._whole_choice(index, choice) for index, choice in enumerate(self._choices)]
        return {**self._head, "object": self._dialect.whole, "choices": choices, "usage": self._usage()}

    async def parts(self, messages: Messages) -> AsyncGenerator[dict[str, Any], None]:
        """The objects of a stream; the first comes with the first tokens, so that an error before it is no stream."""
        async for index, message in messages:
            choice = self._choices[index]
            match message:
                case Start():
                    self._begin(index, message)
                case Chunk():
                    if not choice.texts and (opening := self._dialect.opening()) is not None:
                        yield self._part({"index": index, **opening, "logprobs": None, "finish_reason": None})
                    choice.texts.append("")  # it has begun
                    shown = self._logprobs[index].show(message) if self._wanted.logprobs else None
                    if message.text or shown is not None:
                        delta = self._dialect.delta(message.text)
                        yield self._part({"index": index, **delta, "logprobs": shown, "finish_reason": None})
                case Finish():
                    choice.finish = message
                    end = self._ending(choice)
                    yield self._part({"index": index, **self._dialect.closing(), "logprobs": None, **end})
        if self._wanted.include_usage:
            yield {**self._head, "object": self._dialect.part, "choices": [], "usage": self._usage()}

    def _begin(self, index: int, start: Start) -> None:
        model = self._models(start.model)
        self._choices[index].start = start
        self._logprobs[index] = self._dialect.logprobs(model.tokenizer.vocabulary)
        self._head["model"] = model.name
        # Equal ones, a seed and equal parameters give equal tokens.
        self._head["system_fingerprint"] = f"fp_{sha256(repr(model.key).encode()).hexdigest()[:12]}"

    def _part(self, choice: dict[str, Any]) -> dict[str, Any]:
        part = {**self._head, "object": self._dialect.part, "choices": [choice]}
        return {**part, "usage": None} if self._wanted.include_usage else part

    def _whole_choice(self, index: int, choice: Choice) -> dict[str, Any]:
        shown = self._logprobs[index].join(choice.logprobs) if self._wanted.logprobs else None
        message = self._dialect.message("".join(choice.texts))
        return {"index": index, **message, "logprobs": shown, **self._ending(choice)}

    def _ending(self, choice: Choice) -> dict[str, Any]:
        start, finish = choice.start, choice.finish
        assert start is not None
        assert finish is not None, "an answer ends with a finish or an error"
        own = {
            "seed": start.seed,
            "mode": finish.mode_used.name.lower(),
            "mode_reason": finish.ledger.mode_reason,
        }
        return {"finish_reason": finish.reason.name.lower(), "stop_reason": finish.stop or None, "dartspec": own}

    def _usage(self) -> dict[str, Any]:
        finishes = [choice.finish for choice in self._choices if choice.finish is not None]
        prompt = sum(finish.prompt_tokens for finish in finishes[:: self._wanted.n])  # of each prompt once
        completion = sum(finish.completion_tokens for finish in finishes)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "completion_tokens_details": {
                "accepted_prediction_tokens": sum(finish.ledger.delivered_accepted for finish in finishes),
                "rejected_prediction_tokens": sum(finish.ledger.rejected for finish in finishes),
            },
        }
