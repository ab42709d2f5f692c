"""Between protobuf messages and the gateway's values."""

from __future__ import annotations

from typing import Any

from google.protobuf import json_format, struct_pb2

from dartspec.gateway.registry import Record, ServiceKind
from dartspec.gateway.request import Input, Request
from dartspec.gateway.types import Chunk, Finish, FinishReason, Mode, NoDraftReason, Round, RoundKind, Start
from dartspec.services.common.convert import sampling_to_proto, top_logprobs_from_proto, top_logprobs_to_proto
from dartspec.services.common.errors import InvalidArgument
from dartspec.v1 import common_pb2, gateway_pb2, verifier_pb2


def round_from_proto(event: verifier_pb2.RoundEvent, kind: RoundKind) -> Round:
    """A verifier's round; ``kind`` is the command that it answers. Raises InvalidArgument for a malformed one."""
    return Round(
        kind=kind,
        n=event.n,
        token_ids=tuple(event.token_ids),
        logprobs=tuple(event.logprobs),
        margins=tuple(event.margins),
        top_logprobs=top_logprobs_from_proto(event.top_logprobs) if event.HasField("top_logprobs") else (),
        accepted=event.accepted,
        nodes_offered=event.nodes_offered,
        nodes_verified=event.nodes_verified,
        proposals=event.proposals if event.HasField("proposals") else None,
        search_nodes=event.search_nodes,
        no_draft_reason=NoDraftReason(event.no_draft_reason),
        draft_ms=event.timings.draft_ms,
        verify_ms=event.timings.verify_ms,
        wait_ms=event.timings.wait_ms,
        finish_reason=FinishReason(event.finish_reason),
    )


def request_from_proto(message: gateway_pb2.GenerateRequest) -> Request:
    """A client's request. Raises InvalidArgument for what can be told without a model."""
    if message.tools:
        raise InvalidArgument("tools", "function calling is not supported; leave the field empty")
    if message.HasField("response_format"):
        raise InvalidArgument("response_format", "constrained output is not supported; leave the field empty")
    if message.mode not in (0, *Mode):
        raise InvalidArgument("mode", f"must be MODE_AUTO, MODE_PLAIN or MODE_DART, got {message.mode}")
    return Request(
        model=message.model,
        input=_input_from_proto(message),
        committed_token_ids=tuple(message.committed_token_ids),
        sampling=message.sampling,
        seed=message.seed if message.HasField("seed") else None,
        stop=tuple(message.stop),
        mode=Mode(message.mode or Mode.AUTO),
        request_id=message.request_id,
    )


def _input_from_proto(message: gateway_pb2.GenerateRequest) -> Input:
    match message.WhichOneof("input"):
        case "chat":
            messages = tuple({"role": m.role, "content": m.content} for m in message.chat.messages)
            return Input(messages=messages, template_arguments=_struct(message.chat.template_arguments))
        case "text":
            return Input(text=message.text)
        case "token_ids":
            return Input(token_ids=tuple(message.token_ids.ids))
        case _:
            raise InvalidArgument("input", "one of chat, text and token_ids must be set")


def _struct(message: struct_pb2.Struct) -> dict[str, Any]:
    return {name: _whole_numbers(value) for name, value in json_format.MessageToDict(message).items()}


def _whole_numbers(value: Any) -> Any:
    # A Struct has doubles only, and a template that prints 3 must not print 3.0.
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [_whole_numbers(item) for item in value]
    if isinstance(value, dict):
        return {name: _whole_numbers(item) for name, item in value.items()}
    return value


def response_to_proto(message: Start | Chunk | Finish) -> gateway_pb2.GenerateResponse:
    """A part of an answer."""
    match message:
        case Start():
            start = gateway_pb2.GenerateStart(
                request_id=message.request_id,
                model=message.model,
                seed=message.seed,
                sampling=sampling_to_proto(message.sampling),
                prompt_token_ids=message.prompt_token_ids,
                mode=gateway_pb2.Mode.Name(message.mode),
            )
            return gateway_pb2.GenerateResponse(start=start)
        case Chunk():
            chunk = gateway_pb2.GenerateChunk(
                first_index=message.first_index,
                token_ids=message.token_ids,
                logprobs=message.logprobs,
                margins=message.margins,
                text=message.text,
                top_logprobs=top_logprobs_to_proto(message.top_logprobs),
            )
            return gateway_pb2.GenerateResponse(chunk=chunk)
        case Finish():
            return gateway_pb2.GenerateResponse(finish=_finish_to_proto(message))


def _finish_to_proto(message: Finish) -> gateway_pb2.GenerateFinish:
    ledger = message.ledger
    usage = gateway_pb2.Usage(
        prompt_tokens=message.prompt_tokens,
        completion_tokens=message.completion_tokens,
        accepted_tokens=ledger.delivered_accepted,
        rejected_tokens=ledger.rejected,
    )
    return gateway_pb2.GenerateFinish(
        reason=common_pb2.FinishReason.Name(message.reason),
        stop=message.stop,
        usage=usage,
        ledger=gateway_pb2.Ledger(
            mode=gateway_pb2.Mode.Name(message.mode_used),
            mode_reason=ledger.mode_reason,
            dart_rounds=ledger.dart_rounds,
            plain_steps=ledger.plain_steps,
            dart_committed=ledger.dart_committed,
            accepted=ledger.accepted,
            nodes_offered=ledger.nodes_offered,
            nodes_verified=ledger.nodes_verified,
            draft_ms=ledger.draft_ms,
            search_ms=ledger.search_ms,
            verify_ms=ledger.verify_ms,
            wait_ms=ledger.wait_ms,
            other_ms=ledger.other_ms,
            ttft_ms=ledger.ttft_ms,
            decode_ms=ledger.decode_ms,
            total_ms=ledger.total_ms,
            chain_fallbacks=ledger.chain_fallbacks,
        ),
    )


def record_from_proto(message: gateway_pb2.ServiceRecord) -> Record:
    """An announced service. Raises InvalidArgument for an unknown kind."""
    if message.kind not in tuple(ServiceKind):
        raise InvalidArgument("record.kind", f"must be SERVICE_KIND_VERIFIER or SERVICE_KIND_NGRAM, got {message.kind}")
    return Record(
        kind=ServiceKind(message.kind),
        address=message.address,
        node=message.node,
        model=message.model,
        model_fingerprint=message.model_fingerprint,
        tokenizer_fingerprints=tuple(message.tokenizer_fingerprints),
        draining=message.draining,
        load=message.load if message.HasField("load") else None,
    )
