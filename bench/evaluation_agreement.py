"""Whether `dartspec draft eval` says what services do: `python -m bench.evaluation_agreement --data DIRECTORY`.

Starts a local stack of the built-in model with its head and index, answers prompts of the directory's JSONL files in
forced DART mode with a fixed number of nodes, and compares tokens committed a round (M, the mean over files) with those
of the simulation, for every temperature and seed. At temperature 0 seeds make no difference, so there is one. The last
line is a JSON object; the exit code is 1 when a temperature's mean over seeds differs by more than the tolerance.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from tqdm import tqdm

from dartspec.cli.client import GatewayClient
from dartspec.cli.index import choose_index
from dartspec.cli.prompts import Prompt, read_prompts
from dartspec.cli.request_settings import RequestSettings
from dartspec.cli.stack import running_stack
from dartspec.cli.stack_settings import StackSettings
from dartspec.services.evaluate.grid import Grid
from dartspec.services.evaluate.run import evaluate
from dartspec.services.evaluate.settings import EvaluateSettings, Evaluation

TOLERANCE = 0.03
# Long enough for a search on a busy machine; a chain that stands in for a tree would compare something else.
SEARCH_MS = 5000

Committed = dict[tuple[float, int], float]


async def live(
    stack_settings: StackSettings, tasks: dict[str, list[Prompt]], asked: list[RequestSettings]
) -> Committed:
    """Mean M over tasks, by temperature and seed, as the ledgers of a real stack have it."""
    found: Committed = {}
    answers = len(asked) * sum(len(prompts) for prompts in tasks.values())
    async with running_stack(stack_settings) as stack, GatewayClient(stack.gateway) as client:
        with tqdm(total=answers, unit="answer", disable=None) as bar:
            for request in asked:
                means = []
                for prompts in tasks.values():
                    rounds = accepted = 0
                    for prompt in prompts:
                        ledger = (await client.answer(prompt.text, request)).ledger
                        assert not ledger.chain_fallbacks, "a search took too long"
                        rounds, accepted = rounds + ledger.dart_rounds, accepted + ledger.accepted
                        bar.update()
                    means.append(accepted / rounds + 1)
                found[request.temperature or 0.0, request.seed or 0] = statistics.mean(means)
    return found


def simulated(evaluation: Evaluation) -> Committed:
    """The same from the evaluation."""
    found: Committed = {}
    for point in evaluate(evaluation)["points"]:
        for seed, mean in zip(evaluation.settings.seed, point["mean_by_seed"], strict=False):
            found[point["temperature"], seed] = mean
    return found


def compared(services: Committed, simulation: Committed) -> dict[str, Any]:
    """Both by temperature, with the relative difference of their means and the largest one of a seed."""
    report: dict[str, Any] = {}
    for temperature in dict.fromkeys(key[0] for key in services):
        keys = [key for key in services if key[0] == temperature]
        ours, theirs = [simulation[key] for key in keys], [services[key] for key in keys]
        report[f"{temperature:g}"] = {
            "seeds": [seed for _, seed in keys],
            "services": [round(value, 4) for value in theirs],
            "simulation": [round(value, 4) for value in ours],
            "difference": round(statistics.mean(ours) / statistics.mean(theirs) - 1, 4),
            "largest_of_a_seed": round(max((abs(a / b - 1) for a, b in zip(ours, theirs, strict=True))), 4),
        }
    return report


@click.command(help=__doc__)
@click.option("--data", type=click.Path(path_type=Path, exists=True, file_okay=False), required=True)
@click.option("--per-file", type=click.IntRange(1), default=4, show_default=True, help="Prompts taken from each file.")
@click.option("--tokens", type=click.IntRange(3), default=64, show_default=True, help="Longest answer.")
@click.option("--temperature", "temperatures", multiple=True, type=float, default=(0.0, 1.0), show_default=True)
@click.option("--seeds", type=click.IntRange(1), default=5, show_default=True, help="Seeds at temperatures above 0.")
@click.option("--theta", type=click.IntRange(1, 1024), default=59, show_default=True, help="Nodes of a tree.")
@click.option("--dtype", default="float32", show_default=True, type=click.Choice(["float32", "bfloat16"]))
@click.option("--share-noise/--no-share-noise", default=True, show_default=True)
def main(
    data: Path,
    per_file: int,
    tokens: int,
    temperatures: tuple[float, ...],
    seeds: int,
    theta: int,
    dtype: str,
    share_noise: bool,
) -> None:
    tasks = {file.stem: read_prompts(file, per_file) for file in sorted(data.glob("*.jsonl"))}
    if not tasks:
        raise click.BadParameter(f"{data} holds no .jsonl file", param_hint="'--data'")
    stack_settings = StackSettings(dtype=dtype, budget=f"fixed:{theta}")
    asked = [
        RequestSettings(max_tokens=tokens, temperature=temperature, seed=seed, mode="dart")
        for temperature in temperatures
        for seed in range(seeds if temperature else 1)
    ]
    os.environ["DARTSPEC_GATEWAY_NODE_BUDGET"] = str(theta)
    os.environ["DARTSPEC_GATEWAY_SEARCH_TIMEOUT_MS"] = str(SEARCH_MS)
    os.environ["DARTSPEC_VERIFIER_SHARE_NOISE"] = str(share_noise).lower()
    services = asyncio.run(live(stack_settings, tasks, asked))
    head, choice = stack_settings.head_source, choose_index(None, stack_settings.model)
    assert head is not None
    assert choice is not None
    evaluation = Evaluation(
        model=stack_settings.model,
        revision="",
        head=head,
        index=choice.path,
        corpus=choice.corpus,
        tasks={task: [prompt.text for prompt in prompts] for task, prompts in tasks.items()},
        share_noise=(share_noise,),
        grid=Grid(theta=(theta,), ngram_weight=(0.5,)),
        settings=replace(
            EvaluateSettings(), temperature=temperatures, seed=tuple(range(seeds)), max_new=tokens, dtype=dtype
        ),
    )
    report = compared(services, simulated(evaluation))
    holds = all(abs(part["difference"]) <= TOLERANCE for part in report.values())
    circumstances = {"dtype": dtype, "theta": theta, "tokens": tokens, "share_noise": share_noise}
    prompts = sum(len(found) for found in tasks.values())
    print(json.dumps({**circumstances, "prompts": prompts, "temperatures": report, "holds": holds}))
    sys.exit(0 if holds else 1)


if __name__ == "__main__":
    main()
