"""`dartspec bench`: measurements of running services."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np
import psutil
from tqdm import tqdm

from dartspec.cli.exit_codes import FAILED, INTERRUPTED
from dartspec.cli.finite import Finite
from dartspec.cli.load_plan import Lengths, make_jobs, poisson, read_trace
from dartspec.cli.load_run import LoadRun, run_load
from dartspec.cli.load_sample import Sample, Target, problems, report
from dartspec.cli.load_target import open_target
from dartspec.cli.prompts import Prompt, read_prompts
from dartspec.cli.request_settings import MODES
from dartspec.services.common.errors import InvalidArgument

MOST_PID = 2**31 - 1
NOT_IN_TASK = re.compile(r"[^A-Za-z0-9._-]")


@click.group()
def bench() -> None:
    """Measure running services."""


@bench.command()
@click.option(
    "--target",
    default="127.0.0.1:7000",
    show_default=True,
    envvar="DARTSPEC_GATEWAY",
    show_envvar=True,
    help='A gateway, "host:port" or "unix:/path", or the URL of an OpenAI-style API.',
)
@click.option(
    "--prompts",
    "files",
    multiple=True,
    required=True,
    type=click.Path(path_type=Path),
    help="JSON Lines with prompts; the file's name is the task. Repeatable.",
)
@click.option("--requests", default=64, show_default=True, type=click.IntRange(1), help="How many, without a trace.")
@click.option("--rate", type=Finite(0, min_open=True), help="Poisson arrivals, so many a second.")
@click.option("--trace", type=click.Path(path_type=Path), help='Arrivals, JSON Lines with "at" and "max_tokens".')
@click.option("--clients", type=click.IntRange(1), help="Instead: so many, each one request after the other.")
@click.option("--tokens", default="64", show_default=True, help="Answers: N, uniform:16:1024 or lognormal:16:1024.")
@click.option("--mode", "modes", multiple=True, type=click.Choice(MODES), default=("auto",), help="Repeatable.")
@click.option("--model", default="", help="Name of the model.  [default: the only one]")
@click.option("--temperature", default=0.0, show_default=True, type=Finite(0, 100))
@click.option("--seed", default=1, show_default=True, type=click.IntRange(0), help="Of arrivals and lengths.")
@click.option("--ttft-target", type=Finite(0, min_open=True), metavar="MS", help="Of good answers.")
@click.option("--token-target", type=Finite(0, min_open=True), metavar="MS", help="The same, p95 of tokens.")
@click.option(
    "--pid",
    "pids",
    multiple=True,
    type=click.IntRange(1, MOST_PID),
    help="Tell the peak memory of this process; repeatable.",
)
@click.option("--plot", "picture", type=click.Path(path_type=Path), help="Write a picture (needs dartspec[plot]).")
def serve(
    target: str,
    files: tuple[Path, ...],
    requests: int,
    rate: float | None,
    trace: Path | None,
    clients: int | None,
    tokens: str,
    modes: tuple[str, ...],
    model: str,
    temperature: float,
    seed: int,
    ttft_target: float | None,
    token_target: float | None,
    pids: tuple[int, ...],
    picture: Path | None,
) -> int:
    """Send load to a gateway or an OpenAI-style API, and say how long tokens took.

    Times count from when a request was due, so a server that falls behind cannot hide it. Good answers are those within
    the targets. The last line of stdout is a JSON object; Ctrl-C prints what was measured so far.
    """
    if sum(way is not None for way in (rate, trace, clients)) != 1:
        raise click.UsageError("give one of --rate, --trace and --clients")
    for pid in pids:
        if not psutil.pid_exists(pid):
            raise InvalidArgument("--pid", f"there is no process {pid}")
    if picture is not None:
        from dartspec.cli.load_plot import plot  # matplotlib is an extra
        from dartspec.cli.plot_path import check_plot

        check_plot(picture)
    rng = np.random.default_rng(seed)
    tasks = list(read_tasks(files).items())
    arrivals = read_trace(trace) if trace else poisson(rate or 1.0, requests, rng)
    jobs = make_jobs(arrivals, tasks, Lengths(tokens), modes, rng)
    with tqdm(total=len(jobs), unit="request", disable=not sys.stderr.isatty()) as bar:

        async def run() -> LoadRun:
            async with open_target(target, model, temperature) as opened:
                return await run_load(opened, jobs, clients or 0, pids, lambda sample: bar.update())

        done = asyncio.run(run())
    good = Target((ttft_target or np.inf) / 1e3, (token_target or np.inf) / 1e3)
    result: dict[str, Any] = {"target": target, "interrupted": done.interrupted}
    result |= report(done.samples, done.seconds, good)
    result["peak_mb"] = {str(pid): round(value, 1) for pid, value in done.peak_mb.items()}
    for line in [*table(result), *problems(done.samples)]:
        click.echo(line, err=True)
    click.echo(json.dumps(result))
    if picture is not None:  # last, so that a full disk does not cost the figures
        try:
            plot(done.samples, picture)
        except OSError as error:
            raise click.ClickException(f"--plot {picture}: cannot be written: {error}") from error
    return _code(done.samples, interrupted=done.interrupted)


def read_tasks(files: Sequence[Path]) -> dict[str, list[Prompt]]:
    """Prompts by task. Raises InvalidArgument or NotFound naming the file."""
    tasks: dict[str, list[Prompt]] = {}
    for file in files:
        task = NOT_IN_TASK.sub("-", file.stem)[:32]  # as a gateway takes it
        if task in tasks:
            raise InvalidArgument("--prompts", f"{file}: another file is the task {task} already; rename one")
        tasks[task] = read_prompts(file)
    return tasks


def table(result: dict[str, Any]) -> list[str]:
    """The report for people."""
    from dartspec.cli.replicas import table as lines

    rows = [("task", "mode", "done", "failed", "tokens/s", "ttft p50", "p95", "token p50", "p95", "p99", "good/s")]
    for group in [*result["groups"], {"task": "all", "mode": "", **result["all"]}]:
        ttft, token = group["ttft_ms"], group["inter_token_ms"]
        values = (ttft["p50"], ttft["p95"], token["p50"], token["p95"], token["p99"])
        numbers = ("-" if value is None else f"{value:.1f}" for value in values)
        failed = sum(group["errors"].values())  # what was open at an interruption did not fail
        counts = (str(group["finished"]), str(failed), f"{group['tokens_per_s']:.1f}")
        rows.append((group["task"], group["mode"], *counts, *numbers, f"{group['goodput_requests_per_s']:.2f}"))
    return lines(rows)


def _code(samples: list[Sample], *, interrupted: bool) -> int:
    if interrupted:
        return INTERRUPTED
    return FAILED if any(sample.error for sample in samples) else 0
