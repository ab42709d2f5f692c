"""What a transition score is worth beside n-gram counts: trained onto a head that has none, judged as it is served.

The head's other weights stay as they are, so it is one head with and without its score. Each seed trains a score on the
same texts; `dartspec draft eval`'s searches then say what rounds commit with the counts' and the score's weights
changed. Seeds whose score is in --out already are not trained again. One JSON object as the last line.
"""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import torch
from tqdm import tqdm
from transformers import AutoModelForCausalLM, AutoTokenizer

from bench.training_ablations import HEADER, KEPT, corpus_texts, interval
from dartspec.cli.index import choose_index
from dartspec.cli.locations import BUILT_IN_MODEL, shipped_directory
from dartspec.cli.prompts import read_prompts
from dartspec.services.draft.checkpoint import CONFIG_FILE, save_head
from dartspec.services.draft.config import HeadConfig
from dartspec.services.draft.convert_gguf import resolve_model
from dartspec.services.draft.target_info import TargetInfo
from dartspec.services.draft.train.given import given_head, given_settings
from dartspec.services.draft.train.settings import TrainSettings
from dartspec.services.draft.train.teacher import open_or_build
from dartspec.services.draft.train.train import Trainer
from dartspec.services.evaluate.grid import Grid
from dartspec.services.evaluate.run import evaluate
from dartspec.services.evaluate.settings import EvaluateSettings, Evaluation

BUDGETS = (59, 16, 8)
LEAST, MOST = 24, 320  # tokens of a text to learn from


def train_scores(out: Path, cache: Path, texts: int, base: TrainSettings, seeds: int) -> list[Path]:
    """Heads with a score of their own for each seed, in OUT; one is complete as soon as its config is there."""
    shipped = shipped_directory(BUILT_IN_MODEL)
    assert shipped is not None, "run from a checkout"
    directory = resolve_model(BUILT_IN_MODEL, None)
    # Runs of other settings are others.
    name = f"texts-{texts}-steps-{base.steps}-prefixes-{base.prefixes}-rate-{base.rate:g}-rank-{base.transition_rank}"
    heads = [out / name / f"seed-{seed}" for seed in range(seeds)]
    todo = [(seed, head) for seed, head in enumerate(heads) if not (head / CONFIG_FILE).is_file()]
    if not todo:
        return heads
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval().requires_grad_(False)
    target = TargetInfo.from_model(model, BUILT_IN_MODEL)
    header = AutoTokenizer.from_pretrained(directory).encode(HEADER, add_special_tokens=False)
    known = corpus_texts(shipped / "corpus.npz", header, LEAST, MOST)
    chosen = random.Random(0).sample(known, min(len(known), texts))
    source = open_or_build(model, chosen, target.feature_layers, KEPT, cache, target.fingerprint)
    del model
    config = HeadConfig.from_file(shipped / CONFIG_FILE)
    for seed, path in todo:
        settings = given_settings(config, dataclasses.replace(base, seed=seed))
        head, fingerprint = given_head(shipped, target, settings)
        trainer = Trainer(head, source, settings, torch.float32, fingerprint)
        for _ in (bar := tqdm(range(settings.steps), unit="step", desc=f"seed {seed}")):
            bar.set_postfix_str(f"loss {trainer.train_step():.4f}", refresh=False)
        save_head(trainer.head, path, torch.bfloat16)
    return heads


def judge(head: Path, tasks: dict[str, list[str]], grid: Grid, settings: EvaluateSettings) -> list[dict[str, Any]]:
    """The points of `dartspec draft eval` with the shipped index."""
    index = choose_index(None, BUILT_IN_MODEL)
    assert index is not None
    wanted = Evaluation(BUILT_IN_MODEL, "", str(head), index.path, index.corpus, tasks, (False,), grid, settings)
    points: list[dict[str, Any]] = evaluate(wanted)["points"]
    return points


def summary(by_seed: Sequence[Sequence[dict[str, Any]]]) -> list[dict[str, Any]]:
    """A row for each pair of weights: mean M by node budget over the seeds, and its difference from no score."""
    keys = list(dict.fromkeys((point["weight"], point["transition"]) for point in by_seed[0]))
    means = [
        {(point["weight"], point["transition"], point["theta"]): point["mean"] for point in points}
        for points in by_seed
    ]
    return [
        {
            "ngram_weight": weight,
            "transition_weight": score,
            **{str(theta): interval([found[weight, score, theta] for found in means]) for theta in BUDGETS},
            **{
                f"{theta}_difference": interval(
                    [found[weight, score, theta] - found[weight, 0.0, theta] for found in means]
                )
                for theta in BUDGETS
                if score
            },
        }
        for weight, score in keys
    ]


@click.command()
@click.option("--data", type=click.Path(exists=True, path_type=Path), required=True, help="Prompt files, a task each.")
@click.option("--limit", type=click.IntRange(1), default=16, show_default=True, help="Prompts of each.")
@click.option("--max-new", type=click.IntRange(3), default=96, show_default=True, help="Longest answer, in tokens.")
@click.option("--cache", type=click.Path(path_type=Path), required=True, help="Where the teacher is kept.")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Heads with scores, a directory a seed.")
@click.option("--texts", type=click.IntRange(64), default=1000, show_default=True, help="Texts to learn from.")
@click.option("--seeds", type=click.IntRange(1, 10), default=3, show_default=True)
@click.option("--rank", type=click.IntRange(1), default=64, show_default=True)
@click.option("--steps", type=click.IntRange(31), default=600, show_default=True)
@click.option("--prefixes", type=click.IntRange(1), default=384, show_default=True, help="Prefixes a step.")
@click.option("--rate", type=float, default=2e-3, show_default=True, help="Peak learning rate.")
@click.option("--ngram-weight", type=float, multiple=True, default=(0.5, 0.25, 0.0), show_default=True)
@click.option("--transition-weight", type=float, multiple=True, default=(0.0, 0.5, 1.0), show_default=True)
@click.option("--threads", type=click.IntRange(1), default=2, show_default=True)
def main(
    data: Path,
    limit: int,
    max_new: int,
    cache: Path,
    out: Path,
    texts: int,
    seeds: int,
    rank: int,
    steps: int,
    prefixes: int,
    rate: float,
    ngram_weight: tuple[float, ...],
    transition_weight: tuple[float, ...],
    threads: int,
) -> None:
    """Train a transition score for each seed and judge it with and without the counts."""
    torch.set_num_threads(threads)
    base = TrainSettings(
        steps=steps, prefixes=prefixes, per_text=64, rate=rate, transition_rank=rank, train="transition"
    )
    heads = train_scores(out, cache, texts, base, seeds)
    tasks = {file.stem: [prompt.text for prompt in read_prompts(file, limit)] for file in sorted(data.glob("*.jsonl"))}
    grid = Grid(
        theta=BUDGETS, ngram_weight=ngram_weight, transition_weight=tuple(dict.fromkeys((0.0, *transition_weight)))
    )
    settings = EvaluateSettings(max_new=max_new, dtype="float32", threads=threads)
    rows = summary([judge(head, tasks, grid, settings) for head in heads])
    common = {"texts": texts, "steps": steps, "prefixes": prefixes, "rate": rate, "rank": rank, "seeds": seeds}
    click.echo(json.dumps({**common, "prompts": limit, "max_new": max_new, "results": rows}))


if __name__ == "__main__":
    main()
