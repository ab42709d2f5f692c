"""What options of training are worth: short runs, one option changed at a time, several seeds, 95% intervals.

Every run learns from the same answers of the target for the same number of prefixes, and is judged on answers that
none of them saw, as `dartspec draft train` judges: hit rates, and tokens committed a round by chains and trees without
n-gram counts. Short runs rank options; what a head reaches takes longer ones. A run that is in --out already is not
done again.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import random
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch
from tqdm import tqdm
from transformers import AutoModelForCausalLM, AutoTokenizer

from dartspec.cli.locations import BUILT_IN_MODEL, shipped_directory
from dartspec.services.draft.convert_gguf import resolve_model
from dartspec.services.draft.target_info import TargetInfo
from dartspec.services.draft.train.data import Text, choose_vocabulary, read_texts
from dartspec.services.draft.train.initial import chosen_layers, new_head
from dartspec.services.draft.train.settings import TrainSettings
from dartspec.services.draft.train.simulate import evaluate
from dartspec.services.draft.train.teacher import TextSource, open_or_build
from dartspec.services.draft.train.train import Trainer

VARIANTS: dict[str, dict[str, Any]] = {
    "recipe": {},
    "no shift": {"shift": False},
    "gamma 0.4": {"gamma": 0.4},
    "gamma 0.8": {"gamma": 0.8},
    "gamma 1.0": {"gamma": 1.0},
    "transition 128": {"transition_rank": 128},
    "random layer": {"init": "random"},
    "output trained": {"output": "trained"},
    "one feature layer": {"feature_layers": "26"},
    "five feature layers": {"feature_layers": "1,8,14,20,26"},
    "all offsets": {"deep_share": 1.0},
}
KEPT = 64  # of the teacher's likeliest tokens
MEASURES = ("chain", "tree_16", "tree_59", "hit1", "hit2")
# Two-sided 95% of Student's t, by the degrees of freedom.
STUDENT = (math.nan, 12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
HEADER = "<|im_start|>assistant\n"  # stands for the prompt of an answer whose prompt is not known


def corpus_texts(path: Path, header: Sequence[int], least: int, max_length: int) -> list[Text]:
    """The documents of a corpus (`tokens`, `offsets`) of `least` tokens or more as answers behind `header`."""
    with np.load(path) as arrays:
        tokens, offsets = arrays["tokens"].astype(np.int64), arrays["offsets"]
    documents = [tokens[begin:end].tolist() for begin, end in itertools.pairwise(offsets)]
    return [
        Text(tuple([*header, *document][:max_length]), len(header), 0.0)
        for document in documents
        if len(document) >= least
    ]


def interval(values: Sequence[float]) -> dict[str, float | None]:
    """Mean and half the 95% interval; None for the half with one value."""
    mean = statistics.fmean(values)
    if len(values) < 2:
        return {"mean": round(mean, 4), "half": None}
    spread = statistics.stdev(values) / math.sqrt(len(values))
    return {"mean": round(mean, 4), "half": round(STUDENT[len(values) - 1] * spread, 4)}


def summary(runs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """A row for each variant: every measure, and its difference from the recipe's with the same seed."""
    by_name: dict[str, dict[int, dict[str, Any]]] = {}
    for run in runs:
        by_name.setdefault(run["variant"], {})[run["seed"]] = run
    base = by_name.get("recipe", {})
    rows = []
    for name, by_seed in by_name.items():
        row: dict[str, Any] = {"variant": name, "seeds": sorted(by_seed)}
        for measure in MEASURES:
            row[measure] = interval([run[measure] for run in by_seed.values()])
            pairs = [run[measure] - base[seed][measure] for seed, run in by_seed.items() if seed in base]
            if name != "recipe" and pairs:
                row[f"{measure}_difference"] = interval(pairs)
        rows.append(row)
    return rows


def _measured(trainer: Trainer, held_out: Any, texts: int) -> dict[str, Any]:
    with trainer.autocast():
        found = evaluate(trainer.head, held_out, texts)
    return {
        "chain": found.chain,
        "tree_16": found.tree_16,
        "tree_59": found.tree_59,
        "hit1": found.hit1[0],
        "hit2": found.hit1[1],
        "hit1_by_offset": found.hit1,
        "hit10_by_offset": found.hit10,
    }


@click.command()
@click.option(
    "--text",
    "shards",
    type=click.Path(exists=True, path_type=Path),
    multiple=True,
    help="Texts of `draft generate`; repeatable.  [default: the answers that ship with the built-in model]",
)
@click.option(
    "--texts",
    type=click.IntRange(64),
    default=700,
    show_default=True,
    help="How many of them, drawn once for all runs.",
)
@click.option("--cache", type=click.Path(path_type=Path), required=True, help="Where the teacher is kept.")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Results of runs, a JSON line each.")
@click.option("--variant", "names", type=click.Choice(list(VARIANTS)), multiple=True, help="Only these; repeatable.")
@click.option("--seeds", type=click.IntRange(1, 10), default=3, show_default=True)
@click.option("--steps", type=click.IntRange(31), default=400, show_default=True)
@click.option("--prefixes", type=click.IntRange(1), default=192, show_default=True, help="Prefixes a step.")
@click.option("--draft-vocab", type=click.IntRange(1), default=4096, show_default=True)
@click.option("--eval-texts", type=click.IntRange(1), default=48, show_default=True, help="Held-out texts.")
@click.option("--max-length", type=click.IntRange(8), default=320, show_default=True, help="Texts are cut here.")
@click.option("--dtype", type=click.Choice(["float32", "bfloat16"]), default="float32", show_default=True)
@click.option(
    "--model", default=BUILT_IN_MODEL, show_default=True, help="Target: directory, hub id, .gguf file or name."
)
def main(
    shards: tuple[Path, ...],
    texts: int,
    cache: Path,
    out: Path,
    names: tuple[str, ...],
    seeds: int,
    steps: int,
    prefixes: int,
    draft_vocab: int,
    eval_texts: int,
    max_length: int,
    dtype: str,
    model: str,
) -> None:
    """Train with one option changed at a time; one JSON object as the last line."""
    directory = resolve_model(model, None)
    target_model = AutoModelForCausalLM.from_pretrained(directory, dtype=getattr(torch, dtype))
    target_model.eval().requires_grad_(False)
    target = TargetInfo.from_model(target_model, model)
    if shards:
        known = read_texts(shards, max_length)
    else:
        header = AutoTokenizer.from_pretrained(directory).encode(HEADER, add_special_tokens=False)
        shipped = shipped_directory(BUILT_IN_MODEL)
        assert shipped is not None, "run from a checkout, or give --text"
        known = corpus_texts(shipped / "corpus.npz", header, 24, max_length)
    drawn = random.Random(0).sample(known, min(len(known), texts + eval_texts))
    training, unseen = drawn[eval_texts:], drawn[:eval_texts]
    vocabulary = torch.from_numpy(choose_vocabulary(training, draft_vocab, target.vocab_size))

    def teacher(layers: tuple[int, ...]) -> tuple[TextSource, TextSource]:
        """Of the texts to learn from and of the others, with the features of these layers."""
        place, name = cache, target.fingerprint
        if layers != target.feature_layers:
            place = cache / "-".join(map(str, layers))
        train = open_or_build(target_model, training, layers, KEPT, place / "train", name)
        return train, open_or_build(target_model, unseen, layers, KEPT, place / "held_out", name)

    usual = teacher(target.feature_layers)
    common = {"texts": len(training), "steps": steps, "prefixes": prefixes, "draft_vocab": draft_vocab, "dtype": dtype}
    common["teacher"] = usual[0].fingerprint + usual[1].fingerprint  # results of other texts are others
    done = [json.loads(line) for line in out.read_text().splitlines()] if out.is_file() else []
    runs = [run for run in done if all(run.get(name) == value for name, value in common.items())]
    wanted = [(seed, name) for seed in range(seeds) for name in names or VARIANTS]
    todo = [key for key in wanted if key not in {(run["seed"], run["variant"]) for run in runs}]

    def keep(found: list[dict[str, Any]]) -> None:
        runs.extend(found)
        with out.open("a") as file:
            file.write("".join(json.dumps(run) + "\n" for run in found))

    for seed, name in (bar := tqdm(todo, unit="run")):
        bar.set_postfix_str(f"{name}, seed {seed}")
        settings = dataclasses.replace(
            TrainSettings(steps=steps, prefixes=prefixes, per_text=64, draft_vocab=draft_vocab, seed=seed, dtype=dtype),
            **VARIANTS[name],
        )
        layers = chosen_layers(settings, target)
        source, held_out = usual if layers == target.feature_layers else teacher(layers)
        head = new_head(target_model, target, settings, vocabulary)
        trainer = Trainer(head, source, settings, getattr(torch, dtype))
        for _ in range(steps):
            trainer.train_step()
        found = {name: _measured(trainer, held_out, eval_texts)}
        if settings.transition_rank:
            trainer.head.transition = None  # the same head, its score left out of the search
            found[f"{name}, not used"] = _measured(trainer, held_out, eval_texts)
        keep([{**common, "variant": variant, "seed": seed, **figures} for variant, figures in found.items()])
    click.echo(json.dumps({**common, "eval_texts": len(unseen), "results": summary(runs)}))


if __name__ == "__main__":
    main()
