"""The command: replicas on their addresses until SIGINT or SIGTERM."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace

import click

import bench.synthetic_verifier
from bench.synthetic_verifier.engine import Behaviour, SyntheticEngine
from bench.synthetic_verifier.model import Acceptance, Cost
from bench.synthetic_verifier.servicer import SyntheticServicer, record
from dartspec.cli.child import end_with_parent
from dartspec.services.common.announce import announce_forever
from dartspec.services.common.server import Server, wait_for_stop_signal
from dartspec.v1 import verifier_pb2_grpc

DESCRIPTION = bench.synthetic_verifier.__doc__
DEFAULT_COST = "1:30,64:30,256:60"


@asynccontextmanager
async def replica(behaviour: Behaviour, listen: str, announce: Sequence[str] = ()) -> AsyncIterator[str]:
    """A replica in this process; gives its address."""
    server = Server(["dartspec.v1.VerifierService"])
    engine = SyntheticEngine(behaviour)
    verifier_pb2_grpc.add_VerifierServiceServicer_to_server(SyntheticServicer(engine), server.grpc_server)
    (address,) = await server.start([listen])
    tasks = [asyncio.create_task(engine.run())]
    if announce:
        tasks.append(asyncio.create_task(announce_forever(announce, lambda: record(engine, address))))
    await server.ready()
    try:
        yield address
    finally:
        await server.stop(0)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def serve(behaviours: Sequence[Behaviour], listen: Sequence[str], announce: Sequence[str]) -> None:
    """All replicas, until a signal."""
    async with AsyncExitStack() as exits:
        addresses = [
            await exits.enter_async_context(replica(behaviour, address, announce))
            for behaviour, address in zip(behaviours, listen, strict=True)
        ]
        print("dartspec verifier ready on", *addresses, flush=True)
        await wait_for_stop_signal()


def _cost(context: click.Context, parameter: click.Parameter, value: str) -> Cost:
    try:
        return Cost.parse(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def _words(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, float]:
    rates = {}
    for value in values:
        word, _, rate = value.partition("=")
        try:
            rates[word] = float(rate)
        except ValueError:
            raise click.BadParameter(f"must be WORD=RATE, got {value!r}") from None
        if not word or not 0 <= rates[word] <= 1:
            raise click.BadParameter(f"must be WORD=RATE with a rate from 0 to 1, got {value!r}")
    return rates


@click.command(help=DESCRIPTION)
@click.option("--listen", multiple=True, default=("127.0.0.1:0",), show_default=True, help="A replica; repeatable.")
@click.option("--speed", "speeds", multiple=True, type=float, help="Of the replicas in turn; the last for all others.")
@click.option("--cost", default=DEFAULT_COST, show_default=True, callback=_cost, help="ROWS:MS,... of a pass.")
@click.option("--draft-ms", default=1.0, show_default=True, help="Of a draft.")
@click.option("--prompt-row-ms", default=0.0, show_default=True, help="Of reading a token of a prompt.")
@click.option("--draft-length", default=8, show_default=True, type=click.IntRange(0, 64), help="Offsets proposed.")
@click.option("--acceptance", default=0.7, show_default=True, help="Share of drafts that are right.")
@click.option("--accept", "words", multiple=True, callback=_words, metavar="WORD=RATE", help="By a word in the prompt.")
@click.option("--max-sessions", default=4096, show_default=True, type=click.IntRange(1), help="At once.")
@click.option("--straggler-ms", default=2.0, show_default=True, help="Wait so long for sessions about to verify.")
@click.option("--judgement/--no-judgement", default=True, show_default=True, help="Draft only where it should pay.")
@click.option("--parent", type=int, help="End when the process with this id does.")
@click.option("--announce", multiple=True, help="Gateway to announce the replicas to; repeatable.")
def main(
    listen: tuple[str, ...],
    speeds: tuple[float, ...],
    cost: Cost,
    draft_ms: float,
    prompt_row_ms: float,
    draft_length: int,
    acceptance: float,
    words: dict[str, float],
    max_sessions: int,
    straggler_ms: float,
    judgement: bool,
    parent: int | None,
    announce: tuple[str, ...],
) -> None:
    if parent is not None:
        end_with_parent(parent)
    behaviour = Behaviour(
        cost=cost,
        draft_ms=draft_ms,
        prompt_row_ms=prompt_row_ms,
        acceptance=Acceptance(acceptance, words),
        draft_length=draft_length,
        max_sessions=max_sessions,
        straggler_ms=straggler_ms,
        judgement=judgement,
    )
    paces = [*speeds, *[speeds[-1] if speeds else 1.0] * len(listen)][: len(listen)]
    asyncio.run(serve([replace(behaviour, speed=pace) for pace in paces], listen, announce))


if __name__ == "__main__":
    main()
