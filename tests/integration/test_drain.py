"""Verifier processes that are told to stop: what is open ends as if nothing had happened, the rest goes elsewhere."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
import socket
import tempfile
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from dartspec.cli.answer import Answer
from dartspec.cli.client import GatewayClient
from dartspec.cli.process import Process, Program
from dartspec.cli.progress import Progress
from dartspec.cli.request_settings import RequestSettings
from dartspec.cli.services import Services
from dartspec.services.common.channel import open_channel
from dartspec.services.common.server import Server
from dartspec.v1 import common_pb2, gateway_pb2, gateway_pb2_grpc, verifier_pb2, verifier_pb2_grpc

from .tiny_model import TinyModel

SETTINGS = RequestSettings(max_tokens=200, temperature=0.9, seed=11, raw=True)
PROMPTS = [f"prompt number {i}" for i in range(8)]
# Far longer than a test takes: who waits for it fails.
LONG = "900"
PATIENCE_SECONDS = 60


class Anchor:
    """A gateway of our own with one session, which goes on only when it is told to, so a drain lasts until then."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.stub = verifier_pb2_grpc.VerifierServiceStub(channel)
        self.call: Any = None
        self.n = 0
        self.tokens: list[int] = []
        self.draining = False

    async def open(self, session: int = 1, max_tokens: int = 30) -> None:
        if self.call is None:
            described = await self.stub.Describe(verifier_pb2.VerifierServiceDescribeRequest())
            self.call = self.stub.Rounds()
            await self.call.write(verifier_pb2.RoundsRequest(hello=described.hello))
        sampling = common_pb2.Sampling(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
        order = verifier_pb2.OpenCommand(token_ids=[5, 6, 7], prompt_len=3, sampling=sampling)
        await self.send(verifier_pb2.Command(session=session, open=order))

    async def decode(self, steps: int) -> None:
        order = verifier_pb2.DecodeCommand(n=self.n, steps=steps)
        await self.send(verifier_pb2.Command(session=1, decode=order))

    async def send(self, command: verifier_pb2.Command) -> None:
        await self.call.write(verifier_pb2.RoundsRequest(commands=[command]))

    async def event(self) -> verifier_pb2.Event:
        """The next event; of session 1 its tokens are kept."""
        while True:
            message = await asyncio.wait_for(self.call.read(), PATIENCE_SECONDS)
            assert message is not grpc.aio.EOF
            self.draining = message.load.draining
            for event in message.events:
                if event.HasField("round"):
                    self.n = event.round.n
                    self.tokens += event.round.token_ids
                return event

    async def told(self) -> None:
        """Until the verifier has said that it drains."""
        while not self.draining:
            message = await asyncio.wait_for(self.call.read(), PATIENCE_SECONDS)
            self.draining = message.load.draining


@dataclasses.dataclass
class Verifiers:
    """Verifier processes."""

    addresses: list[str]
    processes: list[Process]
    gateway: str = ""

    async def load(self, which: int) -> common_pb2.LoadReport:
        async with open_channel(self.addresses[which]) as channel:
            stub = verifier_pb2_grpc.VerifierServiceStub(channel)
            return (await stub.Describe(verifier_pb2.VerifierServiceDescribeRequest())).load

    async def exit_code(self, which: int) -> int:
        return await asyncio.wait_for(self.processes[which].ended(), PATIENCE_SECONDS)

    def stop(self, which: int, signum: signal.Signals = signal.SIGTERM) -> None:
        os.kill(self.processes[which].pid, signum)


@asynccontextmanager
async def verifiers(tiny: TinyModel, count: int, *flags: str) -> AsyncIterator[Verifiers]:
    """So many verifiers, and a gateway that was told of them when there are several."""
    arguments = ("--model", str(tiny.model), "--head", str(tiny.head), "--threads", "1", "--budget", "fixed:16", *flags)
    with tempfile.TemporaryDirectory(prefix="dartspec-") as directory:
        services = Services(Progress())
        try:
            addresses = [f"unix:{directory}/v{number}.sock" for number in range(count)]
            programs = [
                Program(str(number), ("verifier", "serve", "--listen", address, *arguments))
                for number, address in enumerate(addresses)
            ]
            await asyncio.gather(*(services.start(program) for program in programs))
            stack = Verifiers(addresses, sorted(services._processes, key=lambda process: process.name))
            if count > 1:
                named = [part for address in addresses for part in ("--verifier", address)]
                listen = ("--listen", f"unix:{directory}/gateway.sock")
                stack.gateway, *_ = await services.start(Program("gateway", ("gateway", "serve", *listen, *named)))
            yield stack
        finally:
            await services.stop()


async def plain_answers(client: GatewayClient) -> list[Answer]:
    settings = dataclasses.replace(SETTINGS, mode="plain")
    return await asyncio.gather(*(client.answer(prompt, settings) for prompt in PROMPTS))


async def until_committed(stack: Verifiers, which: int, tokens: int) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while (await stack.load(which)).committed_tokens < tokens:
            await asyncio.sleep(0.005)


async def test_running_answers_end_and_new_ones_go_elsewhere(tiny: TinyModel) -> None:
    async with (
        verifiers(tiny, 2, "--drain-seconds", LONG) as stack,
        GatewayClient(stack.gateway) as client,
        open_channel(stack.addresses[0]) as channel,
    ):
        plain = await plain_answers(client)
        anchor, whole = Anchor(channel), Anchor(channel)
        await anchor.open()
        await anchor.event()
        before = await stack.load(0)
        running = [
            asyncio.create_task(client.answer(prompt, dataclasses.replace(SETTINGS, mode="dart"))) for prompt in PROMPTS
        ]
        await until_committed(stack, 0, before.committed_tokens + 20)
        stack.stop(0)
        await anchor.told()
        health = health_pb2_grpc.HealthStub(channel)
        answer = await health.Check(health_pb2.HealthCheckRequest(service="dartspec.v1.VerifierService"))
        assert answer.status == health_pb2.HealthCheckResponse.NOT_SERVING
        # A stream that it has may not open sessions; what is open goes on.
        await anchor.open(2)
        refused = await anchor.event()
        assert (refused.session, refused.failed.code) == (2, grpc.StatusCode.UNAVAILABLE.value[0])
        answers = await asyncio.gather(*running)
        assert [each.token_ids for each in answers] == [each.token_ids for each in plain]
        assert [each.text for each in answers] == [each.text for each in plain]
        # Only our own session is left; what comes now does not reach it.
        drained = await stack.load(0)
        assert (drained.draining, drained.sessions) == (True, 1)
        again = [await client.answer(prompt, SETTINGS) for prompt in PROMPTS[:4]]
        assert [each.token_ids for each in again] == [each.token_ids for each in plain[:4]]
        assert (await stack.load(0)).committed_tokens == drained.committed_tokens
        await anchor.decode(29)
        while not (await anchor.event()).round.finish_reason:
            continue
        assert await stack.exit_code(0) == 0
        assert (await client.answer(PROMPTS[0], SETTINGS)).token_ids == plain[0].token_ids
        # Our session's answer is what an undisturbed verifier gives.
        async with open_channel(stack.addresses[1]) as other:
            whole.stub = verifier_pb2_grpc.VerifierServiceStub(other)
            await whole.open()
            await whole.event()
            await whole.decode(29)
            while not (await whole.event()).round.finish_reason:
                continue
        assert anchor.tokens == whole.tokens


class Gateways(gateway_pb2_grpc.RegistryServiceServicer):
    """Takes announcements."""

    def __init__(self) -> None:
        self.records: asyncio.Queue[gateway_pb2.ServiceRecord] = asyncio.Queue()

    async def Announce(self, request: Any, context: Any) -> gateway_pb2.AnnounceResponse:  # noqa: N802
        self.records.put_nowait(request.record)
        return gateway_pb2.AnnounceResponse(next_within_ms=10**6)


async def test_a_second_signal_stops_at_once(tiny: TinyModel) -> None:
    gateways = Gateways()
    server = Server([])
    gateway_pb2_grpc.add_RegistryServiceServicer_to_server(gateways, server.grpc_server)
    (listening,) = await server.start(["127.0.0.1:0"])
    async with (
        verifiers(tiny, 1, "--drain-seconds", LONG, "--announce", listening) as stack,
        open_channel(stack.addresses[0]) as channel,
    ):
        record = await asyncio.wait_for(gateways.records.get(), PATIENCE_SECONDS)
        assert not record.draining
        anchor = Anchor(channel)
        await anchor.open()
        await anchor.event()
        stack.stop(0, signal.SIGINT)
        await anchor.told()
        # It does not wait for the time of the next heartbeat to say so.
        record = await asyncio.wait_for(gateways.records.get(), PATIENCE_SECONDS)
        assert record.draining
        assert (record.load.draining, record.load.sessions) == (True, 1)
        stack.stop(0)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await anchor.event()
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert await stack.exit_code(0) == 0
    await server.stop(0)


async def test_with_nothing_open_it_ends_at_once(tiny: TinyModel) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        metrics = f"127.0.0.1:{probe.getsockname()[1]}"
    async with (
        verifiers(tiny, 1, "--drain-seconds", LONG, "--metrics-listen", metrics) as stack,
        open_channel(stack.addresses[0]) as channel,
    ):
        anchor = Anchor(channel)
        await anchor.open(max_tokens=1)
        assert (await anchor.event()).round.finish_reason
        text = await asyncio.to_thread(lambda: urllib.request.urlopen(f"http://{metrics}/metrics").read().decode())
        values = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
        assert float(values["dartspec_verifier_committed_tokens_total"]) == 1
        assert float(values["dartspec_verifier_sessions"]) == 0
        stack.stop(0)
        assert await stack.exit_code(0) == 0


async def test_what_is_left_when_the_time_is_over_goes_on_elsewhere(tiny: TinyModel) -> None:
    async with (
        verifiers(tiny, 2, "--drain-seconds", "0.01") as stack,
        GatewayClient(stack.gateway) as client,
    ):
        plain = await plain_answers(client)
        before = await stack.load(0)
        running = [asyncio.create_task(client.answer(prompt, SETTINGS)) for prompt in PROMPTS]
        await until_committed(stack, 0, before.committed_tokens + 20)
        stack.stop(0)
        answers = await asyncio.gather(*running)
        assert [each.token_ids for each in answers] == [each.token_ids for each in plain]
        assert await stack.exit_code(0) == 0
