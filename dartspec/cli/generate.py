"""`dartspec generate`: prompts in, text out; or both modes side by side."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource
from tqdm import tqdm

from dartspec import __version__
from dartspec.cli import report
from dartspec.cli.answer import Answer
from dartspec.cli.client import GatewayClient
from dartspec.cli.compare import Pair, decode_speed, median_ttft_ms, request_speed, summarize
from dartspec.cli.exit_codes import DIFFERENT
from dartspec.cli.interrupt import run
from dartspec.cli.measure import run_pairs
from dartspec.cli.prompts import Prompt, read_prompts
from dartspec.cli.request_settings import RequestSettings
from dartspec.cli.sections import SectionedCommand
from dartspec.cli.stack import running_stack
from dartspec.cli.stack_settings import StackSettings
from dartspec.cli.target_description import TargetDescription
from dartspec.cli.up import DEFAULT_LISTEN
from dartspec.services.common.config import flag_name, options
from dartspec.services.common.errors import DartspecError

_STACK_ONLY = {field.name for field in dataclasses.fields(StackSettings)} - {"model"}


@dataclasses.dataclass(frozen=True)
class Job:
    """What to do with the prompts. ``stack`` is None when ``gateway`` exists already; ``model`` "" leaves it open."""

    prompts: Sequence[Prompt]
    request: RequestSettings
    gateway: str
    model: str
    stack: StackSettings | None
    compare: bool
    repeat: int
    as_json: bool


@click.command(
    cls=SectionedCommand,
    sections={"Request": RequestSettings, "Stack, with --local": StackSettings},
)
@click.argument("prompt", required=False)
@click.option(
    "--prompts",
    "file",
    type=click.Path(path_type=Path),
    help="JSON Lines file; each object holds 'turns' (the first is used) or 'prompt'.",
)
@click.option("--limit", type=click.IntRange(1), help="Only the first prompts of the file.")
@click.option("--compare", is_flag=True, help="Answer in plain and in DART mode; exit code 3 when tokens differ.")
@click.option(
    "--repeat", type=click.IntRange(1), default=1, show_default=True, help="Times that each prompt is answered."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object as the last line.")
@click.option(
    "--gateway",
    default=DEFAULT_LISTEN,
    envvar="DARTSPEC_GATEWAY",
    show_default=True,
    show_envvar=True,
    help="Address of a running gateway.",
)
@click.option("--local", is_flag=True, help="Start a stack for this command; the stack's flags below apply.")
@options(RequestSettings, "DARTSPEC_GENERATE", "request")
@options(StackSettings, "DARTSPEC", "stack")
@click.pass_context
def generate(
    ctx: click.Context,
    prompt: str | None,
    file: Path | None,
    limit: int | None,
    compare: bool,
    repeat: int,
    as_json: bool,
    gateway: str,
    local: bool,
    request: RequestSettings,
    stack: StackSettings,
) -> int:
    """Answer PROMPT, or the prompts of a file, through a running gateway or with a stack of its own (--local).

    PROMPT is one argument, the user's message in the model's chat format; with --raw, text that the model continues.
    """
    if (prompt is None) == (file is None):
        raise click.UsageError("give either a prompt or --prompts FILE")
    if prompt is not None and not prompt.strip():
        raise click.UsageError("PROMPT must not be empty")
    if limit is not None and file is None:
        raise click.UsageError("--limit needs --prompts")
    given = _given_on_the_command_line(ctx)
    if local and "gateway" in given:
        raise click.UsageError("--local brings its own gateway; leave out --gateway")
    if not local and (needless := sorted(given & _STACK_ONLY)):
        raise click.UsageError(f"{flag_name(needless[0])} belongs to a stack of its own: it needs --local")
    request.template_arguments  # noqa: B018 - a wrong one should not wait for a stack
    job = Job(
        prompts=read_prompts(file, limit) if file is not None else [Prompt("1", prompt or "")],
        request=request,
        gateway=gateway,
        model=stack.model if "model" in given and not local else "",
        stack=stack if local else None,
        compare=compare,
        repeat=repeat,
        as_json=as_json,
    )
    return run(_run(job))


def _given_on_the_command_line(ctx: click.Context) -> set[str]:
    return {name for name in ctx.params if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE}


async def _run(job: Job) -> int:
    async with _gateway(job) as (address, target), GatewayClient(address, job.model) as client:
        if target is not None:
            click.echo(str(target), err=True)
        return await (_compare if job.compare else _answer)(client, job, target)


@contextlib.asynccontextmanager
async def _gateway(job: Job) -> AsyncIterator[tuple[str, TargetDescription | None]]:
    if job.stack is None:
        yield job.gateway, None
        return
    async with running_stack(job.stack) as stack:
        yield stack.gateway, stack.target


async def _compare(client: GatewayClient, job: Job, target: TargetDescription | None) -> int:
    pairs: list[Pair] = []
    total = len(job.prompts) * job.repeat
    with tqdm(total=total, unit="prompt", disable=None if total > 1 else True, leave=False) as bar:
        async for pair in run_pairs(client, job.prompts, job.request, job.repeat):
            pairs.append(pair)
            bar.update()
    if total == 1:
        click.echo(pairs[0].dart.text + "\n")
    summary = summarize(pairs)
    click.echo(report.comparison(summary))
    if job.as_json:
        _print_json({**summary.to_json(), **_circumstances(pairs[0].dart, target)})
    return 0 if summary.identical else DIFFERENT


async def _answer(client: GatewayClient, job: Job, target: TargetDescription | None) -> int:
    answers: list[Answer] = []
    for prompt in (prompt for _ in range(job.repeat) for prompt in job.prompts):
        if len(job.prompts) > 1:
            click.echo(f"--- {prompt.name}")
        answers.append(await _printed_answer(client, prompt, job.request))
    click.echo(report.speeds(answers), err=True)
    if job.as_json:
        names = [prompt.name for prompt in job.prompts] * job.repeat
        listed = [{"prompt": name, **dataclasses.asdict(answer)} for name, answer in zip(names, answers, strict=True)]
        _print_json(
            {
                "answers": listed,
                "tokens_per_s": request_speed(answers),
                "decode_tokens_per_s": decode_speed(answers),
                "ttft_ms": median_ttft_ms(answers),
                **_circumstances(answers[0], target),
            }
        )
    return 0


async def _printed_answer(client: GatewayClient, prompt: Prompt, request: RequestSettings) -> Answer:
    """One answer, printed as it arrives; its line is ended also when an error cuts it short."""
    printed = False

    def show(text: str) -> None:
        nonlocal printed
        printed = True
        click.echo(text, nl=False)
        sys.stdout.flush()

    try:
        answer = await client.answer(prompt.text, request, show)
    except DartspecError:
        if printed:
            click.echo()
        raise
    click.echo()
    return answer


def _circumstances(answer: Answer, target: TargetDescription | None) -> dict[str, Any]:
    """What it takes to repeat the run; what only the verifier knows is null when the gateway is not ours."""
    return {
        "model": answer.model,
        "seed": answer.seed,
        "dtype": target.dtype if target else None,
        "device": target.device if target else None,
        "invariant": target.invariant if target else None,
        "version": __version__,
    }


def _print_json(value: dict[str, Any]) -> None:
    click.echo(json.dumps(_finite(value), ensure_ascii=False, allow_nan=False))


def _finite(value: Any) -> Any:
    """The value with null for what JSON has no number for, such as the margin of the only token allowed."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
