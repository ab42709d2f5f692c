"""How evenly gateways spread requests over real processes: `python -m bench.balance`.

Synthetic verifiers (`bench.synthetic_verifier`) and gateways as processes. A burst: after thin traffic, 1,000 requests
at once over 8 equal replicas, by one gateway and by four; how many sessions each replica was given, the largest over
the mean. Then a closed loop over 4 replicas, one at half the speed: its tokens in the seconds after the first ten, over
the mean of the others. The last line is a JSON object with `burst` and `half_speed`, an entry for each number of
gateways.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import click
from tqdm import tqdm

from bench.gateway_client import Client
from bench.gateway_stack import Layout, SyntheticStack, synthetic_stack
from dartspec.services.common.channel import open_channel
from dartspec.v1 import gateway_pb2, gateway_pb2_grpc

WARM_UP_SECONDS = 3.0
LOOP_STREAMS = 96
SETTLE_SECONDS = 10.0


async def replicas(stack: SyntheticStack) -> list[gateway_pb2.Replica]:
    """All replicas with what all gateways opened there summed up, by address."""
    totals: dict[str, gateway_pb2.Replica] = {}
    for address in stack.gateways:
        async with open_channel(address) as channel:
            stub = gateway_pb2_grpc.AdminServiceStub(channel)
            for one in (await stub.ListReplicas(gateway_pb2.ListReplicasRequest())).replicas:
                known = totals.setdefault(one.address, one)
                if known is not one:
                    known.opened.auto += one.opened.auto
                    known.load.committed_tokens = max(known.load.committed_tokens, one.load.committed_tokens)
    return [totals[address] for address in sorted(totals)]


async def burst(gateways: int, requests: int, count: int) -> dict[str, Any]:
    """``requests`` at once over ``count`` equal replicas."""
    layout = Layout(
        speeds=(1.0,) * count,
        gateways=gateways,
        verifier=("--cost=1:50,64:50,256:120",),
        gateway=("--max-requests=4096", "--first-token-seconds=300"),
    )
    async with synthetic_stack(layout) as stack:
        clients = [Client(address) for address in stack.gateways]
        for turn in range(int(WARM_UP_SECONDS / 0.3)):
            await asyncio.gather(*[client.answer(f"warm up {turn}", 8) for client in clients])
        before = await replicas(stack)
        with tqdm(total=requests, unit="request", desc=f"burst, {gateways} gateways") as bar:

            async def one(number: int) -> str:
                error = (await clients[number % len(clients)].answer(f"request {number}", 16)).error
                bar.update()
                return error

            errors = [error for error in await asyncio.gather(*map(one, range(requests))) if error]
        opened = [now.opened.auto - then.opened.auto for now, then in zip(await replicas(stack), before, strict=True)]
        for client in clients:
            await client.close()
    return {
        "gateways": gateways,
        "requests": requests,
        "errors": len(errors),
        "opened": opened,
        "max_over_mean": round(max(opened) * len(opened) / sum(opened), 3),
    }


async def half_speed(gateways: int, seconds: float) -> dict[str, Any]:
    """A closed loop over three replicas and one at half their speed."""
    layout = Layout(
        speeds=(1.0, 1.0, 1.0, 0.5), gateways=gateways, verifier=("--cost=1:50,8:60,64:200", "--draft-length=0")
    )
    async with synthetic_stack(layout) as stack:
        clients = [Client(address) for address in stack.gateways]

        async def stream(number: int) -> None:
            turn = 0
            while True:
                turn += 1
                await clients[number % len(clients)].answer(f"stream {number}, answer {turn}", 24 + number % 48)

        streams = [asyncio.create_task(stream(number)) for number in range(LOOP_STREAMS)]
        await asyncio.sleep(SETTLE_SECONDS)
        before = await replicas(stack)
        for _ in tqdm(range(int(seconds)), unit="s", desc=f"half speed, {gateways} gateways"):
            await asyncio.sleep(1.0)
        after = await replicas(stack)
        for task in streams:
            task.cancel()
        await asyncio.gather(*streams, return_exceptions=True)
        for client in clients:
            await client.close()
    tokens = [now.load.committed_tokens - then.load.committed_tokens for now, then in zip(after, before, strict=True)]
    return {"gateways": gateways, "tokens": tokens, "slow_over_others": round(3 * tokens[-1] / sum(tokens[:-1]), 3)}


@click.command(help=__doc__)
@click.option(
    "--gateways", multiple=True, type=click.IntRange(1), default=(1, 4), show_default=True, help="Repeatable."
)
@click.option("--requests", default=1000, show_default=True, type=click.IntRange(8), help="Of the burst.")
@click.option("--replicas", "count", default=8, show_default=True, type=click.IntRange(2), help="Of the burst.")
@click.option("--seconds", default=10.0, show_default=True, help="Of the closed loop, after ten that settle it.")
def main(gateways: tuple[int, ...], requests: int, count: int, seconds: float) -> None:
    async def measure() -> dict[str, Any]:
        return {
            "burst": [await burst(each, requests, count) for each in gateways],
            "half_speed": [await half_speed(each, seconds) for each in gateways],
        }

    print(json.dumps(asyncio.run(measure())))


if __name__ == "__main__":
    main()
