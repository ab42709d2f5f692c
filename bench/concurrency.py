"""Plain decoding against speculation with many answers at a time: `python -m bench.concurrency --data DIRECTORY`.

Starts local stacks (gateway, ngram and verifier processes). At each level so many clients answer prompts one after the
other; tokens count while all of them are at work, since the last answers have fewer for company. The sides take turns,
and a side's ratio is the median over the turns of its rate over plain decoding's. Sides besides `plain`: `adaptive`,
the default budget in mode auto; `fixed:N`, which drafts always and verifies N nodes of each tree; `useless`, the
adaptive budget with a head of random weights. The last line is a JSON object with `levels`: `concurrency`,
`plain_tokens_per_s`, `dart_tokens_per_s` (adaptive), `ratio`, and `sides` with the same of each and the `ratios` of all
turns.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import tempfile
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import click
from tqdm import tqdm

from bench.useless_head import make_useless_head
from dartspec.cli.client import GatewayClient
from dartspec.cli.locations import BUILT_IN_MODEL
from dartspec.cli.prompts import Prompt, read_prompts
from dartspec.cli.request_settings import RequestSettings
from dartspec.cli.stack import running_stack
from dartspec.cli.stack_settings import StackSettings
from dartspec.services.common.machine import native_dtype, read_machine

LEVELS = (1, 2, 4, 8, 16, 32, 64)
# Answers of one measurement, at least: as many of each of the five tasks.
FEWEST_ANSWERS = 15
# Answers for each client, with up to so many clients and with more.
FEW_CLIENTS = 16
MANY_EACH, FEW_EACH = 4, 2
ADAPTIVE, USELESS = "adaptive", "useless"

Side = tuple[GatewayClient, RequestSettings]


async def tokens_per_s(side: Side, prompts: Sequence[Prompt], level: int) -> float:
    """Rate of ``level`` clients that share the prompts, from when all have begun until the first finds none left."""
    client, settings = side
    waiting = list(reversed(prompts))

    async def work() -> tuple[list[tuple[float, int]], float]:
        came: list[tuple[float, int]] = []  # when, and how many tokens
        while waiting:
            await client.answer(
                waiting.pop().text, settings, on_tokens=lambda count: came.append((time.perf_counter(), count))
            )
        return came, time.perf_counter()

    work_done = await asyncio.gather(*(work() for _ in range(level)))
    begin = max(came[0][0] for came, _ in work_done)
    end = min(end for _, end in work_done)
    return sum(count for came, _ in work_done for at, count in came if begin < at <= end) / (end - begin)


async def measure_level(
    sides: dict[str, Side], prompts: Sequence[Prompt], level: int, turns: int, bar: tqdm[Any]
) -> dict[str, Any]:
    """One level: `plain` and the other sides in turns."""
    count = max(FEWEST_ANSWERS, level * (MANY_EACH if level <= FEW_CLIENTS else FEW_EACH))
    part = [prompts[i % len(prompts)] for i in range(count)]
    rates: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(turns):
        # Every side goes first in turn, so that none gains from a machine that changes.
        names = list(sides)
        names = names[turn % len(names) :] + names[: turn % len(names)]
        for name in names:
            rates[name].append(await tokens_per_s(sides[name], part, level))
            bar.update()
    report: dict[str, Any] = {}
    for name in sides:
        ratios = [rate / plain for rate, plain in zip(rates[name], rates["plain"], strict=True)]
        report[name] = {
            "tokens_per_s": round(statistics.median(rates[name]), 1),
            "ratio": round(statistics.median(ratios), 3),
            "ratios": [round(ratio, 3) for ratio in ratios],
        }
    first = next(name for name in sides if name != "plain")
    return {
        "concurrency": level,
        "plain_tokens_per_s": report["plain"]["tokens_per_s"],
        "dart_tokens_per_s": report[first]["tokens_per_s"],
        "ratio": report[first]["ratio"],
        "sides": report,
    }


async def measure(
    names: Sequence[str], dtype: str, prompts: Sequence[Prompt], levels: Sequence[int], turns: int, max_tokens: int
) -> list[dict[str, Any]]:
    """All levels, with a stack for every budget and head."""
    async with AsyncExitStack() as exits:
        directory = exits.enter_context(tempfile.TemporaryDirectory(prefix="dartspec-bench-"))

        async def side_of(name: str) -> Side:
            options: dict[str, Any] = {}
            if name == USELESS:
                options["head"] = str(make_useless_head(Path(directory)))
            elif name != ADAPTIVE:
                options["budget"] = name
            settings = StackSettings(model=BUILT_IN_MODEL, dtype=dtype, **options)
            stack = await exits.enter_async_context(running_stack(settings))
            client = await exits.enter_async_context(GatewayClient(stack.gateway))
            return client, RequestSettings(max_tokens=max_tokens, temperature=0.0, seed=1, mode="auto")

        others = {name: await side_of(name) for name in names}
        # Plain decoding in the process of the first side: the same verifier, told to decode plainly.
        client = next(iter(others.values()))[0]
        plain = RequestSettings(max_tokens=max_tokens, temperature=0.0, seed=1, mode="plain")
        sides = {"plain": (client, plain), **others}
        for side in sides.values():
            await tokens_per_s(side, prompts[:2], 1)
        with tqdm(total=len(levels) * turns * len(sides), unit="run", disable=None) as bar:
            return [await measure_level(sides, prompts, level, turns, bar) for level in levels]


@click.command(help=__doc__)
@click.option(
    "--data",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    required=True,
    help="Directory of prompt files (JSONL with turns or prompt).",
)
@click.option("--level", "levels", multiple=True, type=click.IntRange(1), default=LEVELS, show_default=True)
@click.option(
    "--side", "sides", multiple=True, default=(ADAPTIVE,), show_default=True, help="adaptive, useless, fixed:N."
)
@click.option("--turns", default=3, show_default=True, help="Measurements of each side at each level.")
@click.option("--tokens", default=48, show_default=True, help="Longest answer.")
@click.option(
    "--dtype",
    default="auto",
    show_default=True,
    type=click.Choice(["auto", "float32", "bfloat16"]),
    help="Of target and head; auto: bfloat16 where the processor has it.",
)
def main(data: Path, levels: tuple[int, ...], sides: tuple[str, ...], turns: int, tokens: int, dtype: str) -> None:
    files = sorted(data.glob("*.jsonl"))
    prompts = [prompt for group in zip(*(read_prompts(file, 24) for file in files), strict=False) for prompt in group]
    if not prompts:
        raise click.BadParameter(f"{data} holds no prompts", param_hint="'--data'")
    if dtype == "auto":
        dtype = native_dtype(read_machine(), "auto")[0]
    report = asyncio.run(measure(sides, dtype, prompts, levels, turns, tokens))
    print(json.dumps({"dtype": dtype, "tokens": tokens, "turns": turns, "levels": report}))


if __name__ == "__main__":
    main()
