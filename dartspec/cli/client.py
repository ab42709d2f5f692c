"""A gateway's client: a request out, an `Answer` back, text handed on as it arrives."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from types import TracebackType

import grpc
from google.protobuf import struct_pb2

from dartspec.cli.answer import Answer, Ledger
from dartspec.cli.request_settings import RequestSettings
from dartspec.services.common.channel import error_from_rpc, open_channel
from dartspec.services.common.convert import top_logprobs_from_proto
from dartspec.services.common.credentials import credentials
from dartspec.services.common.errors import DartspecError, InternalError, Unavailable
from dartspec.services.common.tls import ClientTls
from dartspec.services.common.types import TopTokens
from dartspec.v1 import common_pb2, gateway_pb2, gateway_pb2_grpc

_OPTIONAL_SAMPLING = ("temperature", "top_k", "top_p", "min_p")


class GatewayClient:
    """Talks to one gateway; use as an async context manager."""

    def __init__(self, address: str, model: str = "") -> None:
        self.address = address
        self._model = model
        self._channel = open_channel(address, ClientTls.of_environment())
        self._stub = gateway_pb2_grpc.GatewayServiceStub(self._channel)

    async def __aenter__(self) -> GatewayClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._channel.close()

    async def answer(
        self,
        prompt: str,
        settings: RequestSettings,
        on_text: Callable[[str], object] | None = None,
        on_tokens: Callable[[int], object] | None = None,
    ) -> Answer:
        """Answer one prompt. Raises what the gateway raised, or Unavailable.

        ``on_text`` gets pieces of text, ``on_tokens`` the number of tokens of each chunk.
        """
        request = build_request(prompt, settings, self._model)
        try:
            return await self._collect(request, on_text, on_tokens)
        except grpc.aio.AioRpcError as error:
            raise mapped_error(error, self.address) from error

    async def _collect(
        self,
        request: gateway_pb2.GenerateRequest,
        on_text: Callable[[str], object] | None,
        on_tokens: Callable[[int], object] | None,
    ) -> Answer:
        start, finish = None, None
        token_ids: list[int] = []
        logprobs: list[float] = []
        margins: list[float] = []
        top_logprobs: list[TopTokens] = []
        pieces: list[str] = []
        sent = time.perf_counter()
        first = sent
        async for message in self._stub.Generate(request, metadata=credentials()):
            kind = message.WhichOneof("kind")
            if kind == "start":
                start = message.start
            elif kind == "finish":
                finish = message.finish
            elif kind == "chunk":
                chunk = message.chunk
                if chunk.first_index != len(token_ids):
                    raise InternalError(
                        f"gateway {self.address} sent tokens from index {chunk.first_index} on where "
                        f"{len(token_ids)} was next"
                    )
                if not token_ids and chunk.token_ids:
                    first = time.perf_counter()
                token_ids.extend(chunk.token_ids)
                logprobs.extend(chunk.logprobs)
                margins.extend(chunk.margins)
                top_logprobs.extend(top_logprobs_from_proto(chunk.top_logprobs))
                pieces.append(chunk.text)
                if on_text is not None and chunk.text:
                    on_text(chunk.text)
                if on_tokens is not None:
                    on_tokens(len(chunk.token_ids))
        ended = time.perf_counter()
        if start is None or finish is None:
            raise InternalError(f"gateway {self.address} ended an answer without its first or last message")
        return Answer(
            model=start.model,
            seed=start.seed,
            prompt_tokens=len(start.prompt_token_ids),
            text="".join(pieces),
            token_ids=tuple(token_ids),
            logprobs=tuple(logprobs),
            margins=tuple(margins),
            top_logprobs=tuple(top_logprobs),
            reason=common_pb2.FinishReason.Name(finish.reason).removeprefix("FINISH_REASON_").lower(),
            stop=finish.stop,
            ledger=_ledger(finish.ledger),
            ttft_s=first - sent,
            total_s=ended - sent,
        )


def mapped_error(error: grpc.aio.AioRpcError, address: str) -> DartspecError:
    """What the gateway at ``address`` raised, or what the way to it means for whoever called."""
    mapped = error_from_rpc(error, f"gateway {address}")
    if isinstance(mapped, Unavailable) and "failed to connect" in mapped.message:
        return Unavailable(
            f"no gateway answers on {address}: start one with 'dartspec up', name another with --gateway, "
            "or let --local bring its own"
        )
    if "Cancelling all calls" in mapped.message:  # what gRPC says of a server that stops
        return Unavailable(f"the gateway is shutting down ({address})")
    return mapped


def build_request(prompt: str, settings: RequestSettings, model: str = "") -> gateway_pb2.GenerateRequest:
    """The message for one prompt; settings that are None stay absent."""
    sampling = common_pb2.Sampling(max_tokens=settings.max_tokens, top_logprobs=settings.top_logprobs)
    for name in _OPTIONAL_SAMPLING:
        if (value := getattr(settings, name)) is not None:
            setattr(sampling, name, value)
    request = gateway_pb2.GenerateRequest(
        model=model,
        sampling=sampling,
        seed=settings.seed,
        stop=settings.stop,
        mode=f"MODE_{settings.mode.upper()}",
    )
    if settings.raw:
        request.text = prompt
        return request
    arguments = struct_pb2.Struct()
    arguments.update(settings.template_arguments)
    roles = [("system", settings.system)] if settings.system is not None else []
    messages = [gateway_pb2.ChatMessage(role=role, content=text) for role, text in [*roles, ("user", prompt)]]
    request.chat.CopyFrom(gateway_pb2.Chat(messages=messages, template_arguments=arguments))
    return request


def _ledger(message: gateway_pb2.Ledger) -> Ledger:
    values = {field.name: getattr(message, field.name) for field in dataclasses.fields(Ledger)}
    values["mode"] = gateway_pb2.Mode.Name(message.mode).removeprefix("MODE_").lower()
    return Ledger(**values)
