"""A gateway as writer: requests side by side, errors that pass, and prompts without room, over real gRPC."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from dartspec.services.common.errors import DartspecError, FailedPrecondition, InvalidArgument, ResourceExhausted
from dartspec.services.common.server import Server
from dartspec.services.draft.texts import gateway_writer
from dartspec.services.draft.texts.gateway_writer import GatewayWriter
from dartspec.services.draft.texts.plan import Job
from dartspec.services.draft.texts.prompts import Prompt
from dartspec.services.draft.texts.write import TargetName
from dartspec.v1 import common_pb2, gateway_pb2, gateway_pb2_grpc
from tests.toy import mix

PREFIX = [7, 8, 9]


def prompt_ids(text: str) -> list[int]:
    return [*PREFIX, *text.encode(), 3]


def answer_ids(text: str, seed: int) -> list[int]:
    return [mix(text, seed, index) % 1000 for index in range(2 + seed % 4)]


@dataclass
class FakeGateway(gateway_pb2_grpc.GatewayServiceServicer, gateway_pb2_grpc.AdminServiceServicer):
    """Answers are digests; every third request is refused once, and "long" is longer than the context."""

    models: tuple[str, ...] = ("tiny",)
    open: int = 0
    most: int = 0
    refused: set[int] = field(default_factory=set)
    requests: list[Any] = field(default_factory=list)
    error: DartspecError | None = None

    async def ListReplicas(self, request: Any, context: Any) -> Any:  # noqa: N802
        replicas = [
            gateway_pb2.Replica(model=model, model_fingerprint="m", tokenizer_fingerprint="t") for model in self.models
        ]
        return gateway_pb2.ListReplicasResponse(replicas=replicas)

    async def Generate(self, request: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802
        self.requests.append(request)
        if self.error is not None:
            raise self.error
        if request.seed % 3 == 0 and request.seed not in self.refused:
            self.refused.add(request.seed)
            raise ResourceExhausted("full", retry_after_ms=1)
        text = request.chat.messages[0].content if request.HasField("chat") else request.text
        if text == "long":
            raise InvalidArgument("chat", "the prompt has 99 tokens, and the model's context of 64 holds no answer")
        self.open += 1
        self.most = max(self.most, self.open)
        try:
            await asyncio.sleep(0.002)
            start = gateway_pb2.GenerateStart(prompt_token_ids=prompt_ids(text))
            yield gateway_pb2.GenerateResponse(start=start)
            for first, token in enumerate(answer_ids(text, request.seed)):
                chunk = gateway_pb2.GenerateChunk(first_index=first, token_ids=[token], text=f"{token} ")
                yield gateway_pb2.GenerateResponse(chunk=chunk)
            reason = common_pb2.FINISH_REASON_STOP if request.seed % 2 else common_pb2.FINISH_REASON_LENGTH
            yield gateway_pb2.GenerateResponse(finish=gateway_pb2.GenerateFinish(reason=reason))
        finally:
            self.open -= 1


@contextmanager
def serving(gateway: FakeGateway) -> Iterator[str]:
    """Its address; it runs in a loop of its own, as the writer's loop stands still between texts."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    async def begin() -> tuple[Server, str]:
        server = Server(["dartspec.v1.GatewayService"])
        gateway_pb2_grpc.add_GatewayServiceServicer_to_server(gateway, server.grpc_server)
        gateway_pb2_grpc.add_AdminServiceServicer_to_server(gateway, server.grpc_server)
        (address,) = await server.start(["127.0.0.1:0"])
        return server, address

    server, address = asyncio.run_coroutine_threadsafe(begin(), loop).result(30)
    try:
        yield address
    finally:
        asyncio.run_coroutine_threadsafe(server.stop(0), loop).result(30)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway_writer, "PAUSE_SECONDS", 0.001)


def test_texts_come_side_by_side_and_are_tried_again() -> None:
    gateway = FakeGateway()
    jobs = [Job(index, Prompt.user(f"text {index}"), 0.25 * (index % 3), seed=index) for index in range(40)]
    with serving(gateway) as address, GatewayWriter(address, "", 5, 64, 200, {"thinking": False}) as writer:
        assert writer.target == TargetName("tiny", "m", "t", "")
        assert writer.chat_prefix() == tuple(PREFIX)
        written = {text.job.index: text for text in writer.write(iter(jobs))}
    assert len(written) == 40
    for index, text in written.items():
        expected = answer_ids(f"text {index}", index)
        assert (list(text.prompt_ids), list(text.answer_ids)) == (prompt_ids(f"text {index}"), expected)
        assert text.text == "".join(f"{token} " for token in expected)
        assert text.ended == (index % 2 == 1)
    assert 1 < gateway.most <= 5
    assert gateway.refused == set(range(0, 40, 3))
    last = next(request for request in gateway.requests if request.seed == 7 and request.sampling.max_tokens == 64)
    assert (last.sampling.temperature, last.chat.template_arguments["thinking"]) == (0.25, False)
    # Said, not left out: the gateway would put the model's own defaults in.
    assert all(last.sampling.HasField(name) for name in ("top_k", "top_p", "min_p", "repetition_penalty"))
    assert (last.sampling.top_k, last.sampling.top_p, last.sampling.min_p) == (0, 1.0, 0.0)


def test_prompts_without_room_are_left_out_and_answers_are_cut() -> None:
    jobs = [
        Job(0, Prompt.user("long"), 0.0, seed=1),
        Job(1, Prompt(text="0123456789"), 0.0, seed=1),  # 14 tokens
        Job(2, Prompt(text="01234567"), 0.0, seed=3),  # 12 tokens, answer of 5
    ]
    with serving(FakeGateway()) as address, GatewayWriter(address, "tiny", 5, 64, 15, {}) as writer:
        written = {text.job.index: text for text in writer.write(jobs)}
    assert [list(written[index].answer_ids) for index in (0, 1)] == [[], []]
    assert list(written[2].answer_ids) == answer_ids("01234567", 3)[:3]
    assert not written[2].ended


def test_what_does_not_pass_is_raised() -> None:
    gateway = FakeGateway(models=("one", "two"))
    with serving(gateway) as address:
        with pytest.raises(InvalidArgument, match=r"--model: 'tiny' is not one of the gateway's models, .*: one, two"):
            GatewayWriter(address, "tiny", 5, 64, 200, {}).__enter__()
        gateway.error = FailedPrecondition("no head here")
        with (
            GatewayWriter(address, "one", 2, 64, 200, {}) as writer,
            pytest.raises(FailedPrecondition, match="no head here"),
        ):
            list(writer.write([Job(index, Prompt.user("x"), 0.0, seed=index) for index in range(5)]))
