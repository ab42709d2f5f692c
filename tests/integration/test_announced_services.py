"""Services that only announce themselves, and one of two verifiers killed in the middle of answers."""

from __future__ import annotations

import asyncio
import dataclasses
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

from dartspec.cli.client import GatewayClient
from dartspec.cli.process import Process, Program
from dartspec.cli.progress import Progress
from dartspec.cli.request_settings import RequestSettings
from dartspec.cli.services import Services
from dartspec.services.common.channel import open_channel
from dartspec.services.common.errors import DartspecError
from dartspec.v1 import verifier_pb2, verifier_pb2_grpc

from .tiny_model import TinyModel

SETTINGS = RequestSettings(max_tokens=100, temperature=0.9, seed=11, raw=True)
PROMPTS = [f"prompt number {i}" for i in range(6)]


@dataclasses.dataclass
class Fleet:
    """A gateway that was told of nobody, two verifiers and an ngram service that announced themselves to it."""

    gateway: str
    verifiers: list[str]
    victim: Process


@pytest_asyncio.fixture
async def fleet(tiny: TinyModel) -> AsyncIterator[Fleet]:
    with tempfile.TemporaryDirectory(prefix="dartspec-") as directory:
        sockets = Path(directory)
        services = Services(Progress())
        try:
            gateway, *_ = await services.start(
                Program("gateway", ("gateway", "serve", "--listen", "127.0.0.1:0", "--heartbeat-seconds", "0.5"))
            )
            announce = ("--announce", gateway)
            await services.start(
                Program(
                    "ngram",
                    ("ngram", "serve", "--listen", f"unix:{sockets}/n.sock", "--index", str(tiny.index), *announce),
                )
            )
            verifiers = []
            for number in range(2):
                address = f"unix:{sockets}/v{number}.sock"
                arguments = ("--model", str(tiny.model), "--head", str(tiny.head), "--threads", "1", *announce)
                await services.start(Program(f"v{number}", ("verifier", "serve", "--listen", address, *arguments)))
                verifiers.append(address)
            yield Fleet(gateway, verifiers, services._processes[-1])
        finally:
            await services.stop()


async def committed(address: str) -> int:
    async with open_channel(address) as channel:
        stub = verifier_pb2_grpc.VerifierServiceStub(channel)
        return (await stub.Describe(verifier_pb2.VerifierServiceDescribeRequest())).load.committed_tokens


async def first_answer(client: GatewayClient) -> None:
    """Ask until the gateway knows a verifier."""
    async with asyncio.timeout(30):
        while True:
            try:
                await client.answer("hello", dataclasses.replace(SETTINGS, max_tokens=1))
                return
            except DartspecError:
                await asyncio.sleep(0.1)


async def test_answers_survive_a_verifier_that_is_killed(fleet: Fleet) -> None:
    dart = dataclasses.replace(SETTINGS, mode="dart")
    async with GatewayClient(fleet.gateway) as client:
        await first_answer(client)
        plain = [await client.answer(prompt, dataclasses.replace(SETTINGS, mode="plain")) for prompt in PROMPTS]
        before = await committed(fleet.verifiers[1])
        running = [asyncio.create_task(client.answer(prompt, dart)) for prompt in PROMPTS]
        async with asyncio.timeout(60):
            while await committed(fleet.verifiers[1]) < before + 40:
                await asyncio.sleep(0.005)
        fleet.victim.kill()
        answers = await asyncio.gather(*running)
    assert [answer.token_ids for answer in answers] == [answer.token_ids for answer in plain]
    assert [answer.text for answer in answers] == [answer.text for answer in plain]
    # The announced ngram service was used.
    assert sum(answer.ledger.search_ms for answer in answers) > 0
