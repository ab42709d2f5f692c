"""What the gateway adds to a round: `python -m bench.gateway_overhead`.

Real processes over Unix sockets: a gateway, an ngram service and synthetic verifiers (`bench.synthetic_verifier`).
The client checks every token. One stream first: T_other, the part of a round that no service accounts for
(transport, messages, the gateway itself). Then 64 streams over passes of 30 ms, and 500 and 2,000 over passes so long
that one machine can drive them. All in DART mode: the most expensive one for a gateway. The last line is a JSON object:
`p50_ms` (T_other of a round at one stream, median over answers), `cpu_us_per_round` (processor time of the gateway at
64 streams), `levels`.
"""

from __future__ import annotations

import asyncio
import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import click
import numpy as np
from tqdm import tqdm

from bench.gateway_client import Client, Taken
from bench.gateway_stack import Layout, SyntheticStack, synthetic_stack

SAMPLE_SECONDS = 0.1
CLIENT_CONNECTIONS = 8


@dataclass(frozen=True)
class Level:
    """So many streams over replicas whose passes take ``pass_ms``; each stream answers ``answers`` times."""

    streams: int
    replicas: int
    pass_ms: float
    tokens: int
    answers: int = 1


LEVELS = (
    Level(streams=1, replicas=1, pass_ms=30.0, tokens=128, answers=4),
    Level(streams=64, replicas=4, pass_ms=30.0, tokens=256),
    Level(streams=500, replicas=8, pass_ms=200.0, tokens=128),
    Level(streams=2000, replicas=8, pass_ms=800.0, tokens=64),
)


@dataclass
class Load:
    """Streams of one level while they run. progress: tokens by stream; first_end: the same when the first one ended."""

    progress: list[int]
    first_end: list[int] | None = None


async def run_level(stack: SyntheticStack, level: Level, mode: str) -> dict[str, Any]:
    """All streams at once, to their ends."""
    clients = [Client(stack.gateways[0]) for _ in range(min(CLIENT_CONNECTIONS, level.streams))]
    load = Load([0] * level.streams)
    memory: list[float] = [stack.resident_mb()]
    bar = tqdm(total=level.streams * level.tokens * level.answers, unit="token", desc=f"{level.streams} streams")

    async def stream(number: int) -> list[Taken]:
        def came(tokens: int) -> None:
            load.progress[number] += tokens
            bar.update(tokens)

        client = clients[number % len(clients)]
        taken = [
            await client.answer(f"stream {number}, answer {turn}", level.tokens, mode, on_tokens=came)
            for turn in range(level.answers)
        ]
        load.first_end = load.first_end or list(load.progress)
        return taken

    async def watch() -> None:
        while True:
            memory.append(stack.resident_mb())
            await asyncio.sleep(SAMPLE_SECONDS)

    await clients[0].answer("warm up", 32, mode)
    cpu, begin = stack.cpu_seconds(), asyncio.get_running_loop().time()
    watching = asyncio.create_task(watch())
    taken = [one for each in await asyncio.gather(*map(stream, range(level.streams))) for one in each]
    seconds = asyncio.get_running_loop().time() - begin
    watching.cancel()
    bar.close()
    for client in clients:
        await client.close()
    return report(level, taken, load, memory, seconds, stack.cpu_seconds() - cpu)


def report(
    level: Level, taken: Sequence[Taken], load: Load, memory: Sequence[float], seconds: float, cpu_seconds: float
) -> dict[str, Any]:
    """The figures of a level."""
    ledgers = [one.ledger for one in taken if one.ledger is not None]
    rounds = sum(one.dart_rounds + one.plain_steps for one in ledgers)
    other = [one.other_ms / max(1, one.dart_rounds + one.plain_steps) for one in ledgers]
    chunks = [count for one in taken for _, count in one.chunks]
    gaps = np.concatenate([np.diff([at for at, _ in one.chunks]) for one in taken])
    first = load.first_end or load.progress
    errors = [one.error for one in taken if one.error]
    return {
        "streams": level.streams,
        "replicas": level.replicas,
        "pass_ms": level.pass_ms,
        "errors": len(errors),
        "error_codes": sorted(set(errors)),
        "other_p50_ms": round(statistics.median(other), 3),
        "other_share": round(sum(one.other_ms for one in ledgers) / sum(one.decode_ms for one in ledgers), 4),
        "rounds_per_s": round(rounds / seconds, 1),
        "cpu_us_per_round": round(1e6 * cpu_seconds / rounds, 1),
        "cpu_share": round(cpu_seconds / seconds, 3),
        "resident_mb": [round(memory[0], 1), round(max(memory), 1), round(memory[-1], 1)],
        "progress_min_over_max": round(min(first) / max(1, max(first)), 3),
        "tokens_per_chunk": round(sum(chunks) / len(chunks), 2),
        "chunk_gap_p50_ms": round(1e3 * float(np.median(gaps)), 1),
        "ttft_p50_ms": round(statistics.median(one.ttft_ms for one in ledgers), 1),
        "seconds": round(seconds, 2),
    }


async def measure(levels: Sequence[Level], mode: str, ngram: bool) -> list[dict[str, Any]]:
    """Every level with processes of its own."""
    found = []
    for level in levels:
        layout = Layout(
            speeds=(1.0,) * level.replicas,
            processes=level.replicas,
            ngram=ngram,
            # A pass takes what it takes, whatever it holds: the gateway's own part is to be seen.
            verifier=(f"--cost=1:{level.pass_ms},2:{level.pass_ms}", "--no-judgement"),
            gateway=("--max-requests=4096", "--queue-seconds=60", "--first-token-seconds=120"),
        )
        async with synthetic_stack(layout) as stack:
            found.append(await run_level(stack, level, mode))
    return found


@click.command(help=__doc__)
@click.option("--streams", "wanted", multiple=True, type=int, help="Only these levels; repeatable.")
@click.option("--mode", default="dart", show_default=True, type=click.Choice(["plain", "dart", "auto"]))
@click.option("--ngram/--no-ngram", default=True, show_default=True, help="Whether trees are searched.")
@click.option("--pass-ms", type=float, help="Of all levels, instead of their own.")
def main(wanted: tuple[int, ...], mode: str, ngram: bool, pass_ms: float | None) -> None:
    levels = [level for level in LEVELS if not wanted or level.streams in wanted]
    if not levels:
        raise click.BadParameter(f"choose among {[level.streams for level in LEVELS]}", param_hint="'--streams'")
    if pass_ms is not None:
        levels = [Level(one.streams, one.replicas, pass_ms, one.tokens, one.answers) for one in levels]
    found = asyncio.run(measure(levels, mode, ngram))
    of = {level["streams"]: level for level in found}
    print(
        json.dumps(
            {
                "p50_ms": of[1]["other_p50_ms"] if 1 in of else None,
                "cpu_us_per_round": of.get(64, found[-1])["cpu_us_per_round"],
                "mode": mode,
                "ngram": ngram,
                "levels": found,
            }
        )
    )


if __name__ == "__main__":
    main()
