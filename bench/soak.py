"""Mixed traffic for a while, good and bad: `python -m bench.soak`.

A gateway with both APIs over synthetic verifiers (`bench.synthetic_verifier`), as processes. At once: answers in every
mode whose tokens are checked, clients that read slowly, clients that go away, prompts longer than the context, names of
models that nobody serves, and bodies that are not JSON. The last line is a JSON object: counts by kind, `unexpected`
outcomes, resident memory of the gateway along the way, how many series its metrics had, and what was `left` at the end:
open requests, sessions of the verifiers, and gauges that are not zero. Exit code 1 when something is wrong.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import click
import grpc
from tqdm import tqdm

from bench.gateway_client import Client
from bench.gateway_stack import Layout, SyntheticStack, synthetic_stack
from dartspec.cli.top import parse_metrics
from dartspec.services.common.channel import open_channel
from dartspec.v1 import common_pb2, gateway_pb2, gateway_pb2_grpc

MODES = ("auto", "plain", "dart")
CONTEXT = 32_768
SETTLE_SECONDS = 10.0
GAUGES = ("running_requests", "waiting_requests", "policy_plain_classes")
MOST_GROWTH = 1.5  # of resident memory, from the first quarter to the end


@dataclass
class Soak:
    """One run: what happened, by kind and outcome."""

    stack: SyntheticStack
    rng: random.Random
    session: aiohttp.ClientSession
    client: Client
    stub: Any
    outcomes: Counter[tuple[str, str]] = field(default_factory=Counter)

    async def good(self) -> str:
        """An answer whose every token is checked."""
        mode, tokens = self.rng.choice(MODES), self.rng.randrange(1, 200)
        return (await self.client.answer(f"easy {self.rng.random()}", tokens, mode)).error or "ok"

    async def http(self) -> str:
        """A stream over HTTP, to its end."""
        body = {"prompt": f"easy {self.rng.random()}", "max_tokens": self.rng.randrange(1, 100), "stream": True}
        async with self.session.post("/v1/completions", json=body) as response:
            text = await response.text()
        return "ok" if text.rstrip().endswith("[DONE]") else f"HTTP_{response.status}"

    async def slow(self) -> str:
        """A client that takes its time between messages."""
        call = self._call(tokens=60)
        async for _ in call:
            await asyncio.sleep(self.rng.uniform(0.0, 0.3))
        return "ok"

    async def vanishing(self) -> str:
        """A client that goes away, before the first token or later."""
        call = self._call(tokens=5000)
        for _ in range(self.rng.randrange(6)):
            await call.read()
        call.cancel()
        return "ok"

    async def oversized(self) -> str:
        """A prompt that the context does not hold."""
        return await self._refused(self._call(ids=[1] * (CONTEXT + 1)), grpc.StatusCode.INVALID_ARGUMENT)

    async def junk_model(self) -> str:
        """A model that nobody serves."""
        call = self._call(model=f"junk-{self.rng.randrange(10**9)}")
        return await self._refused(call, grpc.StatusCode.NOT_FOUND)

    async def bad_json(self) -> str:
        """A body that is no JSON, or not what it should be."""
        body = self.rng.choice(
            [b"{", b"[]", b'{"prompt": 3, "n": "x"}', b"\xff\xfe", b'{"max_tokens": -1, "prompt": ""}']
        )
        async with self.session.post("/v1/completions", data=body) as response:
            await response.read()
        return "ok" if response.status == 400 else f"HTTP_{response.status}"

    def _call(self, *, tokens: int = 8, ids: list[int] | None = None, model: str = "") -> Any:
        sampling = common_pb2.Sampling(temperature=0.0, max_tokens=tokens)
        prompt = gateway_pb2.TokenIds(ids=ids or [self.rng.randrange(90) for _ in range(9)])
        return self.stub.Generate(gateway_pb2.GenerateRequest(token_ids=prompt, sampling=sampling, model=model))

    async def _refused(self, call: Any, code: grpc.StatusCode) -> str:
        try:
            async for _ in call:
                pass
        except grpc.aio.AioRpcError as error:
            return "ok" if error.code() is code else error.code().name
        return "answered"

    async def keep_doing(self, name: str, what: Callable[[], Awaitable[str]], end: float) -> None:
        """One after the other until the end."""
        loop = asyncio.get_running_loop()
        while loop.time() < end:
            try:
                outcome = await what()
            except (grpc.aio.AioRpcError, aiohttp.ClientError) as error:
                outcome = type(error).__name__
            self.outcomes[name, outcome] += 1

    async def metrics(self) -> dict[tuple[str, ...], float]:
        """The gateway's."""
        async with self.session.get("/metrics") as response:
            return dict(parse_metrics(await response.text()))

    async def left(self) -> dict[str, float]:
        """What is not zero although nothing is open."""
        async with open_channel(self.stack.gateways[0]) as channel:
            admin = gateway_pb2_grpc.AdminServiceStub(channel)
            replicas = (await admin.ListReplicas(gateway_pb2.ListReplicasRequest())).replicas
            status = await admin.GetStatus(gateway_pb2.GetStatusRequest())
        metrics = await self.metrics()
        values = {name: metrics[name,] for name in GAUGES} | {"open_requests": status.open_requests}
        values |= {f"sessions of {one.address}": one.open.auto + one.open.plain + one.open.dart for one in replicas}
        return {name: value for name, value in values.items() if value}


async def soak(seconds: float, workers: int, seed: int) -> dict[str, Any]:
    """Everything at once for so long."""
    layout = Layout(
        speeds=(1.0, 1.0, 0.5), http=True, verifier=("--cost=1:10,64:20,512:100",), gateway=("--max-requests=4096",)
    )
    async with synthetic_stack(layout) as stack, aiohttp.ClientSession(stack.http[0]) as session:
        client = Client(stack.gateways[0])
        async with open_channel(stack.gateways[0]) as channel:
            run = Soak(stack, random.Random(seed), session, client, gateway_pb2_grpc.GatewayServiceStub(channel))
            kinds = (run.good, run.http, run.slow, run.vanishing, run.oversized, run.junk_model, run.bad_json)
            end = asyncio.get_running_loop().time() + seconds
            tasks = [
                asyncio.create_task(run.keep_doing(kind.__name__, kind, end)) for kind in kinds for _ in range(workers)
            ]
            memory, series = [], []
            for _ in tqdm(range(int(seconds)), unit="s"):
                await asyncio.sleep(1.0)
                memory.append(round(stack.resident_mb(), 1))
                series.append(len(await run.metrics()))
            await asyncio.gather(*tasks)
            left = await run.left()
            for _ in range(int(SETTLE_SECONDS / 0.5)):
                if not left:
                    break
                await asyncio.sleep(0.5)
                left = await run.left()
            memory.append(round(stack.resident_mb(), 1))
        await client.close()
    quarter = max(memory[: max(1, len(memory) // 4)])
    return {
        "seconds": seconds,
        "outcomes": {f"{kind}: {outcome}": count for (kind, outcome), count in sorted(run.outcomes.items())},
        "unexpected": sum(count for (_, outcome), count in run.outcomes.items() if outcome != "ok"),
        "resident_mb": {"first_quarter": quarter, "most": max(memory), "end": memory[-1]},
        "memory_bounded": memory[-1] <= MOST_GROWTH * quarter,
        "series": {"after_a_quarter": series[len(series) // 4], "end": series[-1]},
        "left": left,
    }


@click.command(help=__doc__)
@click.option("--seconds", default=600.0, show_default=True, type=click.FloatRange(4), help="How long.")
@click.option("--workers", default=4, show_default=True, type=click.IntRange(1), help="Clients of each kind.")
@click.option("--seed", default=1, show_default=True)
def main(seconds: float, workers: int, seed: int) -> None:
    result = asyncio.run(soak(seconds, workers, seed))
    print(json.dumps(result))
    series = result["series"]
    wrong = result["unexpected"] or result["left"] or not result["memory_bounded"]
    sys.exit(1 if wrong or series["end"] != series["after_a_quarter"] else 0)


if __name__ == "__main__":
    main()
