"""Plain against DART through real processes: `python -m bench.identity --data DIRECTORY`.

Starts a local stack, answers every prompt at every temperature in both modes with the same seed, and lists each first
difference with the margin by which plain decoding's token had won there. A difference counts as numeric when that
margin is below the tolerance of the dtype; anything else is a fault, and the exit code is 1.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import sys
from dataclasses import dataclass
from pathlib import Path

import click
from tqdm import tqdm

from dartspec.cli.client import GatewayClient
from dartspec.cli.compare import Pair, first_difference
from dartspec.cli.measure import run_pairs
from dartspec.cli.prompts import Prompt, read_prompts
from dartspec.cli.request_settings import RequestSettings
from dartspec.cli.stack import running_stack
from dartspec.cli.stack_settings import StackSettings

FLOAT32_TOLERANCE = 1e-4
# One difference by rounding is allowed for so many tokens.
TOKENS_PER_TIE = 5000


@dataclass(frozen=True)
class Part:
    """Where the two answers of a prompt part."""

    prompt: str
    temperature: float
    index: int
    margin: float | None

    def numeric(self, tolerance: float) -> bool:
        """Plain decoding's token had won by less than rounding can move."""
        return self.margin is not None and self.margin < tolerance


@dataclass(frozen=True)
class Identity:
    """What a run showed; tokens are those of plain decoding."""

    answers: int
    tokens: int
    compared_tokens: int
    dart_rounds: int
    committed: int
    parts: tuple[Part, ...]

    def holds(self, tolerance: float) -> bool:
        """Every difference is numeric, and there are few enough."""
        faults = [part for part in self.parts if not part.numeric(tolerance)]
        return not faults and len(self.parts) <= max(1, self.tokens // TOKENS_PER_TIE)


def summarize(runs: list[tuple[float, Pair]]) -> Identity:
    """Count pairs of (temperature, both answers)."""
    parts, compared = [], 0
    for temperature, pair in runs:
        difference = first_difference(pair)
        compared += len(pair.plain.token_ids) if difference is None else difference.index
        if difference is not None:
            parts.append(Part(pair.prompt, temperature, difference.index, difference.gap))
    return Identity(
        answers=len(runs),
        tokens=sum(len(pair.plain.token_ids) for _, pair in runs),
        compared_tokens=compared,
        dart_rounds=sum(pair.dart.ledger.dart_rounds for _, pair in runs),
        committed=sum(pair.dart.ledger.dart_committed for _, pair in runs),
        parts=tuple(parts),
    )


async def run(
    stack_settings: StackSettings, prompts: list[Prompt], temperatures: tuple[float, ...], max_tokens: int, seed: int
) -> Identity:
    """Answer everything on one stack."""
    runs: list[tuple[float, Pair]] = []
    async with running_stack(stack_settings) as stack, GatewayClient(stack.gateway) as client:
        with tqdm(total=len(prompts) * len(temperatures), unit="answer", disable=None) as bar:
            for number, temperature in enumerate(temperatures):
                settings = RequestSettings(max_tokens=max_tokens, temperature=temperature, seed=seed + number)
                async for pair in run_pairs(client, prompts, settings):
                    runs.append((temperature, pair))
                    bar.update()
    return summarize(runs)


@click.command()
@click.option(
    "--data",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    required=True,
    help="Directory of prompt files (JSONL with turns or prompt).",
)
@click.option("--per-file", default=6, help="Prompts taken from each file.")
@click.option("--tokens", default=64, help="Longest answer.")
@click.option("--temperature", "temperatures", multiple=True, type=float, default=(0.0, 0.7, 1.3))
@click.option("--dtype", default="float32", type=click.Choice(["float32", "bfloat16"]))
@click.option("--seed", default=1)
def main(data: Path, per_file: int, tokens: int, temperatures: tuple[float, ...], dtype: str, seed: int) -> None:
    """Token identity over the prompts of the evaluation files."""
    prompts = [
        Prompt(f"{file.stem}/{prompt.name}", prompt.text)
        for file in sorted(data.glob("*.jsonl"))
        for prompt in read_prompts(file, per_file)
    ]
    if not prompts:
        raise click.BadParameter(f"{data} holds no .jsonl file", param_hint="'--data'")
    result = asyncio.run(run(StackSettings(dtype=dtype), prompts, temperatures, tokens, seed))
    # One unit in the last place of a logit between 16 and 32 in bfloat16.
    tolerance = FLOAT32_TOLERANCE if dtype == "float32" else 0.125
    holds = result.holds(tolerance)
    report = {
        **dataclasses.asdict(result),
        "mean_committed": result.committed / result.dart_rounds if result.dart_rounds else None,
        "dtype": dtype,
        "tolerance": tolerance,
        "identical": not result.parts,
        "holds": holds,
    }
    print(json.dumps(report))
    sys.exit(0 if holds else 1)


if __name__ == "__main__":
    main()
