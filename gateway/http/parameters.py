"""What chat and text completions have in common: from the body's fields to requests, one for each choice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dartspec.gateway.http.fields import Fields, integer, kind, number, string
from dartspec.gateway.request import Input, Request, checked_request_id
from dartspec.gateway.sampling_defaults import choice_seed, choose_seed
from dartspec.gateway.types import Mode
from dartspec.services.common.errors import InvalidArgument
from dartspec.v1 import common_pb2

MAX_N = 8
MAX_ANSWERS = 64  # choices of all prompts of one call
UINT32 = 2**32 - 1
UINT64 = 2**64 - 1

NUMBERS = ("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")
IGNORED = ("user", "safety_identifier", "prompt_cache_key", "metadata", "parallel_tool_calls")
NO_TOOLS = "function calling is not supported"
# Field, values that ask for nothing, and why others are refused.
UNSUPPORTED: tuple[tuple[str, tuple[Any, ...], str], ...] = (
    ("tools", ([],), NO_TOOLS),
    ("tool_choice", ("none", "auto"), NO_TOOLS),
    ("functions", ([],), NO_TOOLS),
    ("function_call", ("none", "auto"), NO_TOOLS),
    ("response_format", ({"type": "text"},), "constrained output is not supported"),
    ("modalities", (["text"],), "text is all that is answered"),
    ("audio", (), "text is all that is answered"),
    ("prediction", (), "drafts are made here, not by the client"),
    ("best_of", (1,), "answers are not ranked; use n"),
    ("echo", (False,), "the prompt is not repeated"),
    ("suffix", ("",), "filling in is not supported"),
    ("store", (False,), "nothing is stored"),
    ("reasoning_effort", (), "chat_template_kwargs holds what the model's template knows about reasoning"),
    ("service_tier", ("auto", "default"), "there are no tiers"),
    ("web_search_options", (), "there is no search"),
)


@dataclass(frozen=True)
class Wanted:
    """Which answers, and in which form.

    requests: by index of the choice, n for each prompt. logprobs: they are shown. include_usage: at a stream's end.
    """

    requests: tuple[Request, ...]
    n: int
    request_id: str
    logprobs: bool
    stream: bool
    include_usage: bool


def read_wanted(
    fields: Fields, inputs: Sequence[Input], *, logprobs: bool, top_logprobs: int, max_tokens: int | None
) -> Wanted:
    """Take what is left of the fields. ``max_tokens`` as asked for. Raises InvalidArgument naming a field."""
    for name, neutral, why in UNSUPPORTED:
        fields.only(name, neutral, why)
    fields.ignore(IGNORED)
    sampling = _read_sampling(fields)
    if max_tokens is not None:
        sampling.max_tokens = max_tokens
    sampling.top_logprobs = top_logprobs
    n = fields.integer("n", 1, MAX_N) or 1
    answers = n * len(inputs)
    if answers > MAX_ANSWERS:
        raise InvalidArgument("n", f"at most {MAX_ANSWERS} answers at once, got {len(inputs)} prompts times {n}")
    seed = fields.integer("seed", -(2**63), UINT64)
    first_seed = choose_seed() if seed is None else seed % 2**64
    request_id = checked_request_id(fields.string("request_id"))
    model, stop, mode = fields.string("model"), _read_stop(fields), _read_mode(fields)
    stream, include_usage = _read_stream(fields)
    fields.end()
    requests = tuple(
        Request(
            model=model,
            input=inputs[index // n],
            committed_token_ids=(),
            sampling=sampling,
            seed=choice_seed(first_seed, index % n),
            stop=stop,
            mode=mode,
            request_id=request_id if answers == 1 else f"{request_id}-{index}",
        )
        for index in range(answers)
    )
    return Wanted(requests, n, request_id, logprobs, stream, include_usage)


def _read_sampling(fields: Fields) -> common_pb2.Sampling:
    sampling = common_pb2.Sampling()
    for name in NUMBERS:
        value = fields.number(name)
        if value is not None:
            setattr(sampling, name, value)
    top_k = fields.integer("top_k", -1, UINT32)
    if top_k is not None:
        sampling.top_k = max(top_k, 0)  # -1 is "all" too
    sampling.min_tokens = fields.integer("min_tokens", 0, UINT32) or 0
    sampling.ignore_eos = fields.flag("ignore_eos")
    for name in ("stop_token_ids", "allowed_token_ids"):
        ids = [integer(f"{name}[{i}]", value, 0, UINT32) for i, value in enumerate(fields.array(name))]
        getattr(sampling, name).extend(ids)
    for token, bias in fields.object("logit_bias").items():
        if not token.isascii() or not token.isdecimal() or int(token) > UINT32:
            raise InvalidArgument("logit_bias", f"keys are token ids, got {token!r}")
        sampling.logit_bias[int(token)] = number("logit_bias", bias)
    return sampling


def _read_stop(fields: Fields) -> tuple[str, ...]:
    stop = fields.take("stop")
    if stop is None:
        return ()
    if isinstance(stop, str):
        return (string("stop", stop),)
    if not isinstance(stop, list):
        raise InvalidArgument("stop", f"must be a string or an array of strings, got {kind(stop)}")
    return tuple(string(f"stop[{index}]", value) for index, value in enumerate(stop))


def _read_mode(fields: Fields) -> Mode:
    mode = fields.string("mode", "auto")
    if mode.upper() not in Mode.__members__:
        raise InvalidArgument("mode", f"must be auto, plain or dart, got {mode!r}")
    return Mode[mode.upper()]


def _read_stream(fields: Fields) -> tuple[bool, bool]:
    stream = fields.flag("stream")
    if not stream and fields.has("stream_options"):
        raise InvalidArgument("stream_options", "goes with stream only")
    options = Fields(fields.object("stream_options"), "stream_options")
    include_usage = options.flag("include_usage")
    options.only("include_obfuscation", (False,), "chunks are not padded")
    options.end()
    return stream, include_usage
