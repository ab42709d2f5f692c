"""Answers through killed and stopped processes: `python -m bench.failover`.

Real verifiers, gateways and an ngram service, of which some are killed (-9), stopped (SIGSTOP) or restarted while they
answer; every answer must be the one of an undisturbed run, its indices without gap or repetition, and no request may
fail. Between a gateway and a verifier a relay cuts the stream at an exact token. The default is a tiny random model and
every token index of an answer; `--model smollm2` takes SmolLM2-135M in float32 and a few. The last line is a JSON
object with each scenario's answers, faults and longest silence of a stream, and `holds`.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import sys
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from tqdm import tqdm

from bench.failover_scenarios import Outcome, kill_gateways, kill_ngram, kill_verifiers, roll, stop_verifiers
from bench.failover_stack import failover_stack
from dartspec.cli.locations import BUILT_IN_MODEL, shipped_directory
from dartspec.services.verifier.config import VerifierSettings

if TYPE_CHECKING:
    from tests.integration.tiny_model import TinyModel

SCENARIOS = ("kill", "stop", "gateway", "ngram", "roll")
FEW = (0, 9, 30, 63)
NGRAM_KILLS = 10
CLIENTS = 6


def verifier_settings(tiny: TinyModel) -> VerifierSettings:
    """A verifier of a tiny model."""
    return VerifierSettings(
        model=str(tiny.model), head=str(tiny.head), threads=1, budget="fixed:16", invariant="off", log_level="warning"
    )


def tiny_settings(directory: Path) -> tuple[VerifierSettings, str]:
    """A tiny model made below ``directory``, and the index that goes with it."""
    from tests.integration.tiny_model import make_tiny_model

    tiny = make_tiny_model(directory)
    return verifier_settings(tiny), str(tiny.index)


def smollm2_settings() -> tuple[VerifierSettings, str]:
    """SmolLM2-135M in float32; without an index, the verifier's own chains are verified."""
    head = str(shipped_directory(BUILT_IN_MODEL))
    return VerifierSettings(model=BUILT_IN_MODEL, head=head, budget="fixed:16", log_level="warning"), ""


async def run(model: str, scenarios: Sequence[str], indices: Sequence[int], tokens: int) -> dict[str, Outcome]:
    """The outcomes by scenario and mode."""
    outcomes: dict[str, Outcome] = {}

    async def go(name: str, total: int, scenario: Callable[..., Awaitable[Outcome]], *arguments: Any) -> None:
        if name.partition("_")[0] in scenarios:
            with tqdm(total=total, desc=name, disable=None) as bar:
                outcomes[name] = await scenario(stack, *arguments, tokens, bar.update)

    with tempfile.TemporaryDirectory(prefix="dartspec-") as name:
        directory = Path(name)
        settings, index = tiny_settings(directory) if model == "tiny" else smollm2_settings()
        if {*scenarios} - {"roll"}:
            async with failover_stack(settings, index, directory, gateways=2) as stack:
                few = [each for each in FEW if each in indices] or indices
                later = [each for each in indices if each]  # a client without tokens has nothing to resume
                for mode in ("plain", "dart"):
                    await go(f"kill_{mode}", len(indices), kill_verifiers, mode, indices)
                    await go(f"stop_{mode}", len(few), stop_verifiers, mode, few)
                    await go(f"gateway_{mode}", len(later), kill_gateways, mode, later)
                if index:
                    await go("ngram", NGRAM_KILLS, kill_ngram, NGRAM_KILLS)
        if "roll" in scenarios:
            async with failover_stack(settings, index, directory, verifiers=3) as stack:
                await go("roll", 3, roll, CLIENTS)
    return outcomes


@click.command()
@click.option("--model", default="tiny", type=click.Choice(["tiny", "smollm2"]))
@click.option("--scenario", "scenarios", multiple=True, default=SCENARIOS, type=click.Choice(SCENARIOS))
@click.option("--index", "indices", multiple=True, type=int, help="Token index to kill at; default: all, or a few.")
@click.option("--tokens", default=64, help="Length of the answers.")
def main(model: str, scenarios: tuple[str, ...], indices: tuple[int, ...], tokens: int) -> None:
    """Kill, stop and restart services under answers."""
    chosen: Sequence[int] = indices or (range(tokens) if model == "tiny" else FEW)
    outcomes = asyncio.run(run(model, scenarios, chosen, tokens))
    report: dict[str, Any] = {name: dataclasses.asdict(outcome) for name, outcome in outcomes.items()}
    holds = not any(outcome.faults for outcome in outcomes.values())
    print(json.dumps({"model": model, "tokens": tokens, "indices": [*chosen], **report, "holds": holds}))
    sys.exit(0 if holds else 1)


if __name__ == "__main__":
    main()
