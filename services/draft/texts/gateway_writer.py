"""A cluster as writer: many requests at once to one gateway. Needs neither the model nor its tokenizer here."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, TypeVar

import grpc
from google.protobuf import struct_pb2

from dartspec.services.common.channel import error_from_rpc, open_channel
from dartspec.services.common.credentials import credentials
from dartspec.services.common.errors import (
    DartspecError,
    InvalidArgument,
    ResourceExhausted,
    Unavailable,
)
from dartspec.services.common.tls import ClientTls
from dartspec.services.draft.texts.own_prompts import PROBES, common_prefix
from dartspec.services.draft.texts.plan import Job
from dartspec.services.draft.texts.prompts import Prompt
from dartspec.services.draft.texts.write import TargetName, Written
from dartspec.v1 import common_pb2, gateway_pb2, gateway_pb2_grpc

# A gateway without a verifier for so long is given up; the run can be continued.
PATIENCE_SECONDS = 120.0
PAUSE_SECONDS = 1.0

T = TypeVar("T")


class GatewayWriter:
    """Answers through ``Generate``, at most ``concurrency`` at a time. Use as a context manager.

    Filters are off, whatever the model's generation config says, so that texts are those of an engine here with equal
    seeds. Errors of one request that may pass are tried again; its seed makes the same answer.
    """

    def __init__(
        self,
        address: str,
        model: str,
        concurrency: int,
        max_new: int,
        capacity: int,
        template_arguments: Mapping[str, Any],
    ) -> None:
        self._address, self._model, self._concurrency = address, model, concurrency
        self._max_new, self._capacity = max_new, capacity
        self._arguments = struct_pb2.Struct()
        self._arguments.update(template_arguments)

    def __enter__(self) -> GatewayWriter:
        self._runner = asyncio.Runner()
        try:
            self._runner.run(self._open())
        except BaseException:
            self._runner.close()
            raise
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._runner.run(self._channel.close())
        self._runner.close()

    @property
    def target(self) -> TargetName:
        """As the gateway's replicas say."""
        return self._target

    def chat_prefix(self) -> tuple[int, ...]:
        """Token ids up to where a user's message begins."""
        first, second = (self._runner.run(_patiently(partial(self._prompt_ids, Prompt.user(text)))) for text in PROBES)
        return common_prefix(first, second)

    def write(self, jobs: Iterable[Job]) -> Iterator[Written]:
        """Texts as they are finished. Raises the error of the first request that fails for good."""
        waiting = iter(jobs)
        running: set[asyncio.Task[Written]] = set()
        try:
            while done := self._runner.run(self._some(waiting, running)):
                yield from done
        finally:
            self._runner.run(_cancelled(running))

    async def _open(self) -> None:
        self._channel = open_channel(self._address, ClientTls.of_environment())
        self._stub = gateway_pb2_grpc.GatewayServiceStub(self._channel)
        try:
            answer = await gateway_pb2_grpc.AdminServiceStub(self._channel).ListReplicas(
                gateway_pb2.ListReplicasRequest(), metadata=credentials(), timeout=PATIENCE_SECONDS
            )
        except grpc.aio.AioRpcError as error:
            await self._channel.close()
            raise error_from_rpc(error, f"--gateway {self._address}") from error
        found = {replica.model: replica for replica in answer.replicas if replica.model}
        replica = found.get(self._model) if self._model else next(iter(found.values()), None)
        if replica is None or (not self._model and len(found) > 1):
            await self._channel.close()
            names = ", ".join(sorted(found)) or "none yet"
            raise InvalidArgument("--model", f"{self._model!r} is not one of the gateway's models, which are: {names}")
        self._target = TargetName(replica.model, replica.model_fingerprint, replica.tokenizer_fingerprint, "")

    async def _some(self, waiting: Iterator[Job], running: set[asyncio.Task[Written]]) -> list[Written]:
        """Keep as many requests open as allowed until some are finished; empty when nothing is left."""
        while len(running) < self._concurrency and (job := next(waiting, None)) is not None:
            running.add(asyncio.create_task(_patiently(partial(self._answer, job))))
        if not running:
            return []
        done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        running -= done
        return [task.result() for task in done]

    async def _answer(self, job: Job) -> Written:
        try:
            return await self._collect(job)
        except grpc.aio.AioRpcError as rpc_error:
            error = error_from_rpc(rpc_error, f"--gateway {self._address}")
            if _is_too_long(error):
                return Written(job, (), (), "", ended=False)
            raise error from rpc_error

    async def _collect(self, job: Job) -> Written:
        call = self._stub.Generate(self._request(job.prompt, self._max_new, job), metadata=credentials())
        prompt_ids: list[int] = []
        answer_ids: list[int] = []
        pieces: list[str] = []
        ended = False
        async for message in call:
            kind = message.WhichOneof("kind")
            if kind == "start":
                prompt_ids = list(message.start.prompt_token_ids)
                if self._capacity - len(prompt_ids) < 2:
                    call.cancel()
                    return Written(job, prompt_ids, (), "", ended=False)
            elif kind == "chunk":
                answer_ids += message.chunk.token_ids
                pieces.append(message.chunk.text)
            else:
                ended = message.finish.reason == common_pb2.FINISH_REASON_STOP
        room = self._capacity - len(prompt_ids)
        return Written(job, prompt_ids, answer_ids[:room], "".join(pieces), ended and len(answer_ids) <= room)

    async def _prompt_ids(self, prompt: Prompt) -> list[int]:
        call = self._stub.Generate(self._request(prompt, 1, None), metadata=credentials())
        try:
            async for message in call:
                if message.WhichOneof("kind") == "start":
                    return list(message.start.prompt_token_ids)
        except grpc.aio.AioRpcError as error:
            raise error_from_rpc(error, f"--gateway {self._address}") from error
        finally:
            call.cancel()
        raise Unavailable(f"gateway {self._address} ended an answer without its first message")

    def _request(self, prompt: Prompt, max_tokens: int, job: Job | None) -> gateway_pb2.GenerateRequest:
        sampling = common_pb2.Sampling(
            temperature=job.temperature if job is not None else 0.0,
            max_tokens=max_tokens,
            top_k=0,
            top_p=1.0,
            min_p=0.0,
            repetition_penalty=1.0,
        )
        request = gateway_pb2.GenerateRequest(
            model=self._model, sampling=sampling, seed=job.seed if job is not None else 0
        )
        if prompt.messages:
            messages = [gateway_pb2.ChatMessage(role=role, content=content) for role, content in prompt.messages]
            request.chat.CopyFrom(gateway_pb2.Chat(messages=messages, template_arguments=self._arguments))
        elif prompt.token_ids:
            request.token_ids.ids.extend(prompt.token_ids)
        else:
            request.text = prompt.text
        return request


async def _patiently(attempt: Callable[[], Awaitable[T]]) -> T:
    """Its result, tried again while there is no room or no verifier, but not for ever."""
    loop = asyncio.get_running_loop()
    until = loop.time() + PATIENCE_SECONDS
    while True:
        try:
            return await attempt()
        except (ResourceExhausted, Unavailable) as error:
            if loop.time() > until:
                raise
            await asyncio.sleep(max(error.retry_after_ms / 1e3, PAUSE_SECONDS))


def _is_too_long(error: DartspecError) -> bool:
    return isinstance(error, InvalidArgument) and "holds no answer" in error.message


async def _cancelled(tasks: set[asyncio.Task[Written]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
