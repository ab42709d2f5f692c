"""Whether the gateway's policy is ever worse than a fixed mode: `python -m bench.control`.

A gateway and a synthetic verifier (`bench.synthetic_verifier`) as processes; the verifier drafts whenever it is asked,
so that only the policy decides. Streams answer easy and hard prompts by turns, told apart by `dartspec-task`, along a
schedule of 1, then many, then 1 streams, once in each mode. What came in a window of the schedule with the policy is
compared with the time that the same easy and hard tokens take in each fixed mode, as measured in that phase: two runs
are never at the same place of an easy and a hard answer. The last line is a JSON object: `worst` (that of the better
fixed mode over the window, windows in the warm-up after a first change of load aside), `phases` and `windows`.
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

FIXED = ("plain", "dart")
MODES = (*FIXED, "auto")
TASKS = ("easy", "hard")
# With one stream easy prompts gain much by drafts and hard ones lose a little; with 64 all lose.
COST = "1:20,9:27,64:80,576:560"


@dataclass(frozen=True)
class Phase:
    """So many streams for so long."""

    streams: int
    seconds: float


@dataclass(frozen=True)
class Came:
    """By task and second of the schedule, [2, seconds]: tokens that came, and the time that streams waited for them."""

    tokens: NDArray[np.float64]
    waited: NDArray[np.float64]

    def rates(self, seconds: slice) -> NDArray[np.float64]:
        """Tokens of each task in a second of one stream."""
        return self.tokens[:, seconds].sum(axis=1) / np.maximum(self.waited[:, seconds].sum(axis=1), 1e-9)


async def run(phases: Sequence[Phase], mode: str, policy: str, tokens: int, bar: Any) -> Came:
    """What came along the schedule."""
    layout = Layout(
        verifier=(f"--cost={COST}", "--no-judgement", "--accept=easy=0.8", "--accept=hard=0.2"),
        gateway=(f"--policy={policy}",),
    )
    seconds = int(sum(phase.seconds for phase in phases))
    came = Came(np.zeros((len(TASKS), seconds + 1)), np.zeros((len(TASKS), seconds + 1)))
    async with synthetic_stack(layout) as stack:
        client = Client(stack.gateways[0])
        loop = asyncio.get_running_loop()
        begin = loop.time()

        async def stream(number: int) -> None:
            turn, last = number, loop.time()

            def on_tokens(count: int) -> None:
                nonlocal last
                now = loop.time()
                where = turn % len(TASKS), min(int(now - begin), seconds)
                came.tokens[where] += count
                came.waited[where] += now - last
                last = now

            while True:
                task = TASKS[turn % len(TASKS)]
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
    return Came(came.tokens[:, :seconds], came.waited[:, :seconds])


def compare(came: dict[str, Came], phases: Sequence[Phase], window: int, warm_up: int) -> dict[str, Any]:
    """Windows and phases of the three runs."""
    auto = came["auto"].tokens
    warm = np.zeros(auto.shape[1] - window + 1, bool)
    needed = {mode: np.zeros(auto.shape[1]) for mode in FIXED}  # stream seconds for what came with the policy
    had = np.zeros(auto.shape[1])
    start, seen, rows = 0, set[int](), []
    for phase in phases:
        end = start + int(phase.seconds)
        if phase.streams not in seen:  # what was never seen must be learned
            warm[max(0, start - window + 1) : start + warm_up] = True
        seen.add(phase.streams)
        had[start:end] = phase.streams
        settled = slice(start + warm_up, end)
        for mode in FIXED:
            rates = came[mode].rates(settled)
            if not rates.all():
                raise click.ClickException(
                    f"no {TASKS[int(rates.argmin())]} token came in mode {mode}: give more --seconds"
                )
            needed[mode][start:end] = (auto[:, start:end] / rates[:, None]).sum(axis=0)
        rows.append(
            {"streams": phase.streams}
            | {mode: round(float(found.tokens[:, settled].sum(axis=0).mean()), 1) for mode, found in came.items()}
        )
        start = end
    over = np.ones(window)
    ratios = np.minimum(*(np.convolve(needed[mode], over, "valid") for mode in FIXED)) / np.convolve(had, over, "valid")
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

    async def measure() -> dict[str, Came]:
        with tqdm(total=3 * 3 * seconds, unit="s") as bar:
            return {mode: await run(phases, mode, policy, tokens, bar) for mode in MODES}

    print(json.dumps({"policy": policy, **compare(asyncio.run(measure()), phases, window, warm_up)}))


if __name__ == "__main__":
    main()
