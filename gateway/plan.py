"""A request made complete: prompt, sampling, seed and where its text stands, before anything is opened."""

from __future__ import annotations

from dataclasses import dataclass

from dartspec.gateway import mode_reasons
from dartspec.gateway.affinity import block_hashes
from dartspec.gateway.classes import Classes, request_class
from dartspec.gateway.config import Settings
from dartspec.gateway.fleet import Asking
from dartspec.gateway.model import Model
from dartspec.gateway.request import Request, checked_request_id
from dartspec.gateway.sampling_defaults import check_stop_strings, choose_seed, complete_sampling
from dartspec.gateway.stream import AnswerStream
from dartspec.gateway.types import FinishReason, Mode, Start
from dartspec.services.common.errors import InvalidArgument
from dartspec.services.common.sampling_rules import check_sampling, check_token_ids
from dartspec.services.common.types import Sampling


@dataclass(frozen=True)
class Plan:
    """How to make one answer.

    committed: tokens that it begins with; stream: has taken them. ended and ended_stop: why nothing is left to do,
    when the committed tokens end the answer. mode: the one in force, after the server's setting. asking: what a
    verifier must have and do for it. request_class: by which the policy tells it from others.
    """

    start: Start
    model: Model
    mode: Mode
    mode_reason: str
    committed: tuple[int, ...]
    stream: AnswerStream
    ended: FinishReason
    ended_stop: str
    asking: Asking
    request_class: str


async def make_plan(request: Request, model: Model, settings: Settings, classes: Classes) -> Plan:
    """Complete and check a request. Raises InvalidArgument naming the field."""
    check_stop_strings(request.stop)
    request_id = checked_request_id(request.request_id)
    prompt = await request.input.prompt(model.tokenizer.prompts)
    room = model.context_length - len(prompt)
    if room < 1:
        raise InvalidArgument(
            request.input.field_name,
            f"the prompt has {len(prompt)} tokens, and the model's context of {model.context_length} holds no answer",
        )
    sampling = complete_sampling(
        request.sampling, model.default_sampling, room=room, default_max_tokens=settings.default_max_tokens
    )
    check_sampling(sampling, model.vocab_size)
    stream = AnswerStream(model.tokenizer.vocabulary.detokenizer(), request.stop)
    ended, ended_stop = _resume(request.committed_token_ids, sampling, model, room, stream)
    mode, mode_reason = _mode(request.mode, settings)
    start = Start(
        request_id=request_id,
        model=model.name,
        seed=choose_seed() if request.seed is None else request.seed,
        sampling=sampling,
        prompt_token_ids=tuple(prompt),
        mode=request.mode,
    )
    asking = Asking(
        needs_head=mode is Mode.DART,
        prompt_tokens=len(prompt) + len(request.committed_token_ids),
        max_tokens=sampling.max_tokens,
        blocks=block_hashes(model.key, prompt),
        route=request.route,
    )
    label = classes.admit(request_class(request.route.task, len(prompt), sampling.temperature))
    return Plan(start, model, mode, mode_reason, request.committed_token_ids, stream, ended, ended_stop, asking, label)


def _resume(
    committed: tuple[int, ...], sampling: Sampling, model: Model, room: int, stream: AnswerStream
) -> tuple[FinishReason, str]:
    """Bring the stream to where the committed tokens end. Returns why the answer ends there, if it does."""
    field = "committed_token_ids"
    check_token_ids(field, committed, model.vocab_size)
    longest = min(sampling.max_tokens, room)
    if len(committed) > longest:
        raise InvalidArgument(field, f"{len(committed)} tokens, but the answer may have {longest} at most")
    taken, stop = stream.replay(committed)
    if taken < len(committed):
        raise InvalidArgument(field, f"the answer ended at index {taken - 1}, where stop string {stop!r} was complete")
    ends = set(sampling.stop_token_ids) | (set() if sampling.ignore_eos else set(model.eos_token_ids))
    for index, token in enumerate(committed[:-1]):
        if token in ends:
            raise InvalidArgument(field, f"the answer ended at index {index} with token {token}")
    if stop or (committed and committed[-1] in ends):
        return FinishReason.STOP, stop
    return (FinishReason.LENGTH if len(committed) == longest else FinishReason.NONE), ""


def _mode(asked: Mode, settings: Settings) -> tuple[Mode, str]:
    if asked is not Mode.AUTO:
        return asked, mode_reasons.ASKED
    if settings.mode != "auto":
        return Mode[settings.mode.upper()], mode_reasons.SERVER
    return Mode.AUTO, mode_reasons.LEFT
