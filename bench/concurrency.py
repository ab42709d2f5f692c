"""Plain against adaptive speculation with many answers at a time: `python -m bench.concurrency --data DIRECTORY`.

Starts a local stack (gateway, ngram and verifier processes). At each level so many clients answer prompts one after the
other, once in mode `plain` and once in mode `auto`, in turns; a level's ratio is the median over its pairs. The last
line is a JSON object with `levels`: `concurrency`, `plain_tokens_per_s`, `dart_tokens_per_s` (medians), `ratio`.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from tqdm import tqdm

from dartspec.cli.client import GatewayClient
from dartspec.cli.prompts import Prompt, read_prompts
from dartspec.cli.request_settings import RequestSettings
from dartspec.cli.stack import running_stack
from dartspec.cli.stack_settings import StackSettings

LEVELS = (1, 2, 4, 8, 16, 32, 64)
# Answers of one measurement, at least; and for each client.
FEWEST_ANSWERS = 6
ANSWERS_EACH = 2


async def tokens_per_s(
    client: GatewayClient, prompts: Sequence[Prompt], settings: RequestSettings, level: int
) -> float:
    """Rate of ``level`` clients that share the prompts."""
    waiting = list(reversed(prompts))
    tokens = 0

    async def work() -> None:
        nonlocal tokens
        while waiting:
            answer = await client.answer(waiting.pop().text, settings)
            tokens += len(answer.token_ids)

    begin = time.perf_counter()
    await asyncio.gather(*(work() for _ in range(level)))
    return tokens / (time.perf_counter() - begin)


async def measure(
    stack_settings: StackSettings, prompts: Sequence[Prompt], levels: Sequence[int], pairs: int, max_tokens: int
) -> list[dict[str, Any]]:
    """All levels on one stack."""
    modes = [RequestSettings(max_tokens=max_tokens, temperature=0.0, seed=1, mode=mode) for mode in ("plain", "auto")]
    report = []
    async with running_stack(stack_settings) as stack, GatewayClient(stack.gateway) as client:
        for mode in modes:
            await tokens_per_s(client, prompts[:2], mode, 1)
        with tqdm(total=len(levels) * pairs, unit="pair", disable=None) as bar:
            for level in levels:
                count = max(FEWEST_ANSWERS, ANSWERS_EACH * level)
                part = [prompts[i % len(prompts)] for i in range(count)]
                rates: list[tuple[float, float]] = []
                for turn in range(pairs):
                    # The modes take turns in going first, so that neither gains from a machine that changes.
                    order = modes if turn % 2 == 0 else modes[::-1]
                    found = {mode.mode: await tokens_per_s(client, part, mode, level) for mode in order}
                    rates.append((found["plain"], found["auto"]))
                    bar.update()
                report.append(
                    {
                        "concurrency": level,
                        "plain_tokens_per_s": round(statistics.median(plain for plain, _ in rates), 1),
                        "dart_tokens_per_s": round(statistics.median(dart for _, dart in rates), 1),
                        "ratio": round(statistics.median(dart / plain for plain, dart in rates), 3),
                    }
                )
    return report


@click.command(help=__doc__)
@click.option(
    "--data",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    required=True,
    help="Directory of prompt files (JSONL with turns or prompt).",
)
@click.option("--level", "levels", multiple=True, type=click.IntRange(1), default=LEVELS, show_default=True)
@click.option("--pairs", default=3, show_default=True, help="Measurements of each mode at each level.")
@click.option("--tokens", default=64, show_default=True, help="Longest answer.")
@click.option("--dtype", default="bfloat16", show_default=True, type=click.Choice(["float32", "bfloat16"]))
def main(data: Path, levels: tuple[int, ...], pairs: int, tokens: int, dtype: str) -> None:
    files = sorted(data.glob("*.jsonl"))
    prompts = [prompt for group in zip(*(read_prompts(file, 24) for file in files), strict=False) for prompt in group]
    if not prompts:
        raise click.BadParameter(f"{data} holds no prompts", param_hint="'--data'")
    settings = StackSettings(dtype=dtype)
    report = asyncio.run(measure(settings, prompts, levels, pairs, tokens))
    print(json.dumps({"dtype": dtype, "tokens": tokens, "pairs": pairs, "levels": report}))


if __name__ == "__main__":
    main()
