"""Whether the gateway's policy is ever worse than a fixed mode: `python -m bench.control`.

A gateway and a synthetic verifier (`bench.synthetic_verifier`) as processes; the verifier drafts whenever it is asked,
so that only the policy decides. Streams answer easy and hard prompts by turns, told apart by `dartspec-task`, along a
schedule of 1, then many, then 1 streams, once in each mode. Tokens per second are compared window by window with the
better of plain and DART in the same window of the schedule. The last line is a JSON object: `worst` (auto over the
better fixed mode, windows in the warm-up after a first change of load aside), `phases` and `windows`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from bench.gateway_client import Client
from bench.gateway_stack import Layout, synthetic_stack

MODES = ("plain", "dart", "auto")
# With one stream easy prompts gain much by drafts and hard ones lose a little; with 64 all lose.
COST = "1:20,9:27,64:80,576:560"


@dataclass(frozen=True)
class Phase:
    """So many streams for so long."""

    streams: int
    seconds: float


async def run(phases: Sequence[Phase], mode: str, policy: str, tokens: int, bar: Any) -> NDArray[np.int64]:
    """Tokens that came in each second of the schedule."""
    layout = Layout(
        verifier=(f"--cost={COST}", "--no-judgement", "--accept=easy=0.8", "--accept=hard=0.2"),
        gateway=(f"--policy={policy}",),
    )
    seconds = int(sum(phase.seconds for phase in phases))
    came = np.zeros(seconds + 1, np.int64)
    async with synthetic_stack(layout) as stack:
        client = Client(stack.gateways[0])
        loop = asyncio.get_running_loop()
        begin = loop.time()

        def on_tokens(count: int) -> None:
            came[min(int(loop.time() - begin), seconds)] += count

        async def stream(number: int) -> None:
            turn = number
            while True:
                task = ("easy", "hard")[turn % 2]
                metadata = (("dartspec-task", task),)
                prompt = f"{task}: stream {number}, answer {turn}"
                await client.answer(prompt, tokens, mode, metadata=metadata, on_tokens=on_tokens)
                turn += 1

        streams: list[asyncio.Task[None]] = []
        for phase in phases:
            for task in streams[phase.streams :]:
                task.cancel()
            await asyncio.gather(*streams[phase.streams :], return_exceptions=True)
            del streams[phase.streams :]
            streams += [asyncio.create_task(stream(number)) for number in range(len(streams), phase.streams)]
            for _ in range(int(phase.seconds)):
                await asyncio.sleep(1.0)
                bar.update()
        for task in streams:
            task.cancel()
        await asyncio.gather(*streams, return_exceptions=True)
        await client.close()
    return came[:seconds]


def compare(came: dict[str, NDArray[np.int64]], phases: Sequence[Phase], window: int, warm_up: int) -> dict[str, Any]:
    """Windows and phases of the three runs."""
    rates = {mode: np.convolve(counts, np.ones(window), "valid") / window for mode, counts in came.items()}
    ratios = rates["auto"] / np.maximum(np.maximum(rates["plain"], rates["dart"]), 1e-9)
    warm = np.zeros(len(ratios), bool)
    start, seen, rows = 0, set[int](), []
    for phase in phases:
        end = start + int(phase.seconds)
        if phase.streams not in seen:  # what was never seen must be learned
            warm[max(0, start - window + 1) : start + warm_up] = True
        seen.add(phase.streams)
        rows.append(
            {"streams": phase.streams}
            | {mode: round(float(counts[start + warm_up : end].mean()), 1) for mode, counts in came.items()}
        )
        start = end
    counted = np.where(warm, np.inf, ratios)
    return {
        "worst": round(float(counted.min()), 3),
        "worst_at_s": int(counted.argmin()),
        "worst_with_warm_up": round(float(ratios.min()), 3),
        "phases": rows,
        "windows": [round(float(ratio), 3) for ratio in ratios],
    }


@click.command(help=__doc__)
@click.option("--streams", default=64, show_default=True, type=click.IntRange(2), help="In the middle of the schedule.")
@click.option("--seconds", default=40, show_default=True, type=click.IntRange(12), help="Of each phase.")
@click.option("--window", default=10, show_default=True, type=click.IntRange(1), help="Seconds.")
@click.option("--warm-up", default=8, show_default=True, type=click.IntRange(0), help="Seconds after a first change.")
@click.option("--tokens", default=200, show_default=True, help="Of each answer.")
@click.option("--policy", default="learned", show_default=True, type=click.Choice(["learned", "verifier"]))
def main(streams: int, seconds: int, window: int, warm_up: int, tokens: int, policy: str) -> None:
    phases = [Phase(1, seconds), Phase(streams, seconds), Phase(1, seconds)]

    async def measure() -> dict[str, NDArray[np.int64]]:
        with tqdm(total=3 * 3 * seconds, unit="s") as bar:
            return {mode: await run(phases, mode, policy, tokens, bar) for mode in MODES}

    print(json.dumps({"policy": policy, **compare(asyncio.run(measure()), phases, window, warm_up)}))


if __name__ == "__main__":
    main()
