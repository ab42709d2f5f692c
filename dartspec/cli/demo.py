"""`dartspec demo`: the main job on the built-in model, in two minutes."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import AsyncIterator, Sequence

import click

from dartspec.cli import report
from dartspec.cli.client import GatewayClient
from dartspec.cli.compare import Difference, Pair, first_difference, summarize
from dartspec.cli.exit_codes import DIFFERENT
from dartspec.cli.interrupt import run
from dartspec.cli.measure import run_pairs
from dartspec.cli.prompts import Prompt
from dartspec.cli.request_settings import RequestSettings
from dartspec.cli.stack import running_stack
from dartspec.cli.stack_settings import StackSettings
from dartspec.services.common.machine import native_dtype, read_machine

PROMPTS = (
    Prompt("1", "Explain in a few sentences why the sky is blue."),
    Prompt("2", "Write a Python function that returns the n-th Fibonacci number, and explain how it works."),
    Prompt("3", "A shop sells pens at 3 for 2 dollars. How much do 12 pens cost? Think step by step."),
)
ANSWER_TOKENS = 128
CHECK_TOKENS = 32


@click.command()
def demo() -> int:
    """Answer three prompts with the built-in model in plain and in DART mode, and check that the tokens are equal."""
    return run(_demo())


async def _demo() -> int:
    dtype, reason = native_dtype(read_machine(), "auto")
    click.echo(f"dtype {dtype}: {reason}")
    answers = RequestSettings(max_tokens=ANSWER_TOKENS, temperature=0.0)
    async with _client(dtype) as client:
        click.echo("warming up, then three prompts in plain and in DART mode, at temperature 0")
        pairs = []
        async for pair in run_pairs(client, PROMPTS, answers):
            pairs.append(pair)
            _show(pair)
    click.echo("\nall three")
    click.echo(report.comparison(summarize(pairs)))
    click.echo(f"\nfloat32 check: the same prompts, {CHECK_TOKENS} tokens each")
    check = dataclasses.replace(answers, max_tokens=CHECK_TOKENS)
    async with _client("float32") as client:
        checked = [pair async for pair in run_pairs(client, PROMPTS, check)]
    click.echo(f"float32 check: {report.identity_line(_differences(checked))}")
    return DIFFERENT if _differences(checked) else 0


@contextlib.asynccontextmanager
async def _client(dtype: str) -> AsyncIterator[GatewayClient]:
    click.echo(f"starting ngram, verifier and gateway, target in {dtype}")
    async with running_stack(StackSettings(dtype=dtype)) as stack, GatewayClient(stack.gateway) as client:
        click.echo(str(stack.target))
        yield client


def _show(pair: Pair) -> None:
    prompt = next(prompt for prompt in PROMPTS if prompt.name == pair.prompt)
    click.echo(f"\n[{prompt.name}/{len(PROMPTS)}] {prompt.text}\n\n{pair.dart.text.strip()}\n")
    click.echo(f"  plain  {report.speeds([pair.plain])}")
    click.echo(f"  DART   {report.speeds([pair.dart])}")
    click.echo(f"  {report.identity_line(_differences([pair]))}")


def _differences(pairs: Sequence[Pair]) -> list[Difference]:
    return [found for pair in pairs if (found := first_difference(pair)) is not None]
