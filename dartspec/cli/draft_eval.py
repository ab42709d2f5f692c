"""`dartspec draft eval`: hit rates of a head, and what tree search would commit with it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from dartspec.cli.draft_report import hit_table, point_table
from dartspec.cli.index import choose_index
from dartspec.cli.locations import BUILT_IN_MODEL
from dartspec.cli.prompts import read_prompts
from dartspec.cli.stack_settings import StackSettings
from dartspec.services.common.config import options
from dartspec.services.common.errors import InvalidArgument, NotFound
from dartspec.services.common.machine import native_dtype, read_machine
from dartspec.services.evaluate.grid import Grid
from dartspec.services.evaluate.settings import EvaluateSettings, Evaluation


@click.command()
@click.option("--data", type=click.Path(path_type=Path), help="Directory of JSONL files, a task each.")
@click.option("--prompts", type=click.Path(path_type=Path), multiple=True, help="One such file; repeatable.")
@click.option("--limit", type=click.IntRange(1), help="Only the first prompts of each file.")
@click.option("--model", default=BUILT_IN_MODEL, show_default=True, help="Directory, hub id, .gguf file or name.")
@click.option("--revision", default="", help="Revision of a hub id.")
@click.option("--head", default=None, help="Head directory or hub id.  [default: the one made for the model]")
@click.option("--index", default=None, help="n-gram index file, or 'none'.  [default: the built-in model's, else none]")
@click.option(
    "--share-noise/--no-share-noise",
    default=None,
    help="Drafts follow the target's noise where it samples, or not.  [default: both, if a temperature is above 0]",
)
@click.option("--plot", type=click.Path(path_type=Path), help="Write curves to this image file (.png, .svg, .pdf).")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object as the last line.")
@options(EvaluateSettings, "DARTSPEC_EVAL")
@options(Grid, "DARTSPEC_EVAL", "grid")
def evaluate(
    data: Path | None,
    prompts: Sequence[Path],
    limit: int | None,
    model: str,
    revision: str,
    head: str | None,
    index: str | None,
    share_noise: bool | None,
    plot: Path | None,
    as_json: bool,
    settings: EvaluateSettings,
    grid: Grid,
) -> None:
    """Evaluate a draft head on prompts.

    The target answers each prompt once at each temperature; what the head proposes at every position of the answers is
    kept, and every combination of --search, --k, --w, --theta, --score-rule, --ngram-weight and --transition-weight
    replays the rounds.
    docs/draft-evaluation.md says what the numbers mean.
    """
    tasks = _tasks(data, prompts, limit)
    head = StackSettings(model=model, head=head).head_source
    if head is None or head == "none":
        raise InvalidArgument("--head", f"no head ships for {model}; name the directory of one")
    choice = choose_index(index, model)
    if choice is not None and choice.corpus is None and not choice.path.is_file():
        raise NotFound(f"--index {choice.path}: no such file; build it with 'dartspec ngram build', or give 'none'")
    if plot is not None:
        from dartspec.cli.draft_plot import save_plot  # matplotlib is an extra
        from dartspec.cli.plot_path import check_plot

        check_plot(plot)
    machine = read_machine()
    dtype = native_dtype(machine, settings.device)[0] if settings.dtype == "auto" else settings.dtype

    from dartspec.services.evaluate.run import evaluate as run  # torch takes its time

    report = run(
        Evaluation(
            model=model,
            revision=revision,
            head=head,
            index=None if choice is None else choice.path,
            corpus=None if choice is None else choice.corpus,
            tasks=tasks,
            share_noise=(True, False) if share_noise is None else (share_noise,),
            grid=grid,
            settings=dataclasses.replace(settings, dtype=dtype, threads=settings.threads or machine.cores),
        )
    )
    points: list[dict[str, Any]] = report["points"]
    click.echo(hit_table(points) + "\n\n" + point_table(points))
    if plot is not None:
        save_plot(points, plot)
    if as_json:
        click.echo(json.dumps(report))


def _tasks(data: Path | None, prompts: Sequence[Path], limit: int | None) -> dict[str, list[str]]:
    """Prompts by the name of their file. Raises InvalidArgument or NotFound naming what is wrong."""
    files = list(prompts)
    if data is not None:
        if not data.is_dir():
            raise NotFound(f"--data {data}: no such directory")
        found = sorted(data.glob("*.jsonl"))
        if not found:
            raise InvalidArgument("--data", f"{data} holds no .jsonl file")
        files += found
    if not files:
        raise click.UsageError("give --data DIRECTORY or --prompts FILE")
    tasks: dict[str, list[str]] = {}
    for file in files:
        if file.stem in tasks:
            raise InvalidArgument("--prompts", f"two files are called {file.stem}; a task is named after its file")
        tasks[file.stem] = [prompt.text for prompt in read_prompts(file, limit)]
    return tasks
