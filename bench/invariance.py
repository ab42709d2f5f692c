"""Whether rounding ever changes a token: `python -m bench.invariance --data DIRECTORY`.

An engine in this process answers the same prompts, with seeds and in turn at temperatures 0 and 0.8, alone or among 32
sessions, plainly or with the head's own chains of several lengths. Answers are compared with those of plain decoding
among 32; the same is done without the mode `invariant`, and a plain step is timed both ways. The last line is a JSON
object: for each mode `rows`, the block and the tile, `step_ms` of one row and of 16, and `same`, the share of equal
answers of each way.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from tokenizers import Tokenizer
from tqdm import tqdm

from bench.engine_driver import EngineClient, own_chain
from dartspec.cli.locations import BUILT_IN_MODEL, shipped_directory
from dartspec.cli.prompts import read_prompts
from dartspec.services.common.types import Sampling
from dartspec.services.verifier.config import VerifierSettings
from dartspec.services.verifier.offline import started_engine
from dartspec.services.verifier.replica import Replica

TOGETHER = 32
SAMPLINGS = (Sampling(0.0, 1), Sampling(0.8, 1))
PROMPT_TOKENS = 96
STEPS = 15


def step_ms(client: EngineClient, prompt: Sequence[int], sessions: int) -> float:
    """Median milliseconds of a plain step."""
    times = []
    for _ in range(3):
        client.answers([prompt] * sessions, STEPS + 1)
        times.append(1e3 * client.seconds / STEPS)
    return statistics.median(times)


def compare(
    settings: VerifierSettings, prompts: list[list[int]], tokens: int, alone: int, chains: Sequence[int]
) -> Any:
    """All ways in one engine."""
    replica, engine = started_engine(settings)
    client = EngineClient(engine)
    ways: list[tuple[str, int, int, int]] = [("plain among 32", len(prompts), TOGETHER, 0)]
    ways += [(f"chains of {nodes} among 32", len(prompts), TOGETHER, nodes) for nodes in chains]
    ways += [("plain alone", alone, 1, 0), (f"chains of {chains[0]} alone", alone, 1, chains[0])]
    found: dict[str, list[list[int]]] = {}
    report: dict[str, Any] = {
        "rows": None if replica.decoder.target.rows is None else asdict(replica.decoder.target.rows),
        "step_ms": {sessions: round(step_ms(client, prompts[0], sessions), 2) for sessions in (1, 16)},
    }
    with tqdm(total=sum(count for _, count, _, _ in ways), unit="answer", disable=None) as bar:
        for name, count, width, nodes in ways:
            bar.set_description(name)
            _limit(replica, nodes)
            answers = client.answers(
                prompts[:count],
                tokens,
                width=width,
                candidates=own_chain if nodes else None,
                forced=bool(nodes),
                samplings=SAMPLINGS,
                on_answer=bar.update,
            )
            found[name] = [answer.tokens for answer in answers]
    engine.stop()
    truth = found.pop("plain among 32")
    report["answers"] = len(truth)
    report["same"] = {
        name: f"{sum(a == b for a, b in zip(answers, truth, strict=False))}/{len(answers)}"
        for name, answers in found.items()
    }
    return report


def _limit(replica: Replica, nodes: int) -> None:
    budget: Any = replica.budget
    budget.limit = nodes


@click.command(help=__doc__)
@click.option(
    "--data",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    required=True,
    help="Directory of prompt files (JSONL with turns or prompt).",
)
@click.option("--answers", default=1000, show_default=True, help="Answers of each way among 32.")
@click.option("--alone", default=100, show_default=True, help="Answers of each way alone.")
@click.option("--tokens", default=64, show_default=True, help="Tokens of an answer.")
@click.option("--chain", "chains", multiple=True, default=(4, 7), show_default=True, help="Nodes of the chains.")
@click.option(
    "--mode", "modes", multiple=True, type=click.Choice(["on", "off"]), default=("on", "off"), show_default=True
)
@click.option("--dtype", default="bfloat16", show_default=True, type=click.Choice(["float32", "bfloat16"]))
def main(
    data: Path, answers: int, alone: int, tokens: int, chains: tuple[int, ...], modes: tuple[str, ...], dtype: str
) -> None:
    head = shipped_directory(BUILT_IN_MODEL)
    assert head is not None
    files = sorted(data.glob("*.jsonl"))
    texts = [prompt.text for file in files for prompt in read_prompts(file, answers)]
    if not texts:
        raise click.BadParameter(f"{data} holds no prompts", param_hint="'--data'")
    report: dict[str, Any] = {"dtype": dtype, "tokens": tokens, "time": time.strftime("%Y-%m-%d")}
    for mode in modes:
        settings = VerifierSettings(model=BUILT_IN_MODEL, head=str(head), dtype=dtype, budget="fixed:8", invariant=mode)
        report[mode] = compare(settings, _prompts(texts, answers), tokens, alone, chains)
    print(json.dumps(report))


def _prompts(texts: Sequence[str], count: int) -> list[list[int]]:
    from dartspec.services.draft.convert_gguf import resolve_model

    tokenizer = Tokenizer.from_file(str(resolve_model(BUILT_IN_MODEL) / "tokenizer.json"))
    ids = [tokenizer.encode(text).ids[:PROMPT_TOKENS] for text in texts]
    return [ids[i % len(ids)] for i in range(count)]


if __name__ == "__main__":
    main()
