"""`dartspec up`: a local stack in the foreground."""

from __future__ import annotations

import asyncio
import shlex
import shutil
import sys
from pathlib import Path

import click

from dartspec.cli.exit_codes import exit_code
from dartspec.cli.interrupt import run
from dartspec.cli.listening import check_free
from dartspec.cli.request_settings import MODES
from dartspec.cli.sections import SectionedCommand
from dartspec.cli.services import Services
from dartspec.cli.stack import Stack, running_stack
from dartspec.cli.stack_settings import StackSettings
from dartspec.services.common.config import options, tcp_address
from dartspec.services.common.errors import DartspecError, InvalidArgument
from dartspec.services.common.server import wait_for_stop_signal

DEFAULT_LISTEN = "127.0.0.1:7000"
DEFAULT_HTTP = "127.0.0.1:8000"


@click.command(cls=SectionedCommand, sections={"Stack": StackSettings})
@click.option(
    "--listen",
    multiple=True,
    default=(DEFAULT_LISTEN,),
    show_default=True,
    envvar="DARTSPEC_LISTEN",
    show_envvar=True,
    help="Address of the gateway: host:port or unix:/path; repeatable; port 0 picks a free one.",
)
@click.option(
    "--http-listen",
    default=DEFAULT_HTTP,
    show_default=True,
    envvar="DARTSPEC_HTTP_LISTEN",
    show_envvar=True,
    help="Address of the OpenAI-style HTTP API: host:port; port 0 picks a free one; '' for none.",
)
@click.option(
    "--mode",
    type=click.Choice(MODES),
    default="auto",
    show_default=True,
    envvar="DARTSPEC_MODE",
    show_envvar=True,
    help="How requests that leave it open are decoded.",
)
@options(StackSettings, "DARTSPEC")
def up(settings: StackSettings, listen: tuple[str, ...], http_listen: str, mode: str) -> int:
    """Start ngram, verifiers and a gateway on this machine, and stop them on Ctrl-C.

    Every other setting of a service is taken from its own environment variable, for example
    DARTSPEC_VERIFIER_MAX_SESSIONS; 'dartspec verifier serve --help' lists them.
    """
    for address in listen:
        check_free(address)
    if problem := tcp_address(http_listen):
        raise InvalidArgument("--http-listen", problem)
    if http_listen:
        check_free(http_listen, "--http-listen")
    return run(_serve(settings, listen, http_listen, mode))


async def _serve(settings: StackSettings, listen: tuple[str, ...], http_listen: str, mode: str) -> int:
    started = running_stack(settings, listen=listen, http_listen=http_listen, mode=mode, on_log=_print_log)
    async with started as stack:
        stopped = asyncio.create_task(wait_for_stop_signal())
        failed = asyncio.create_task(_fatal_failure(stack.services, len(stack.verifiers)))
        await asyncio.sleep(0)  # whoever reads the ready line may send a signal at once
        click.echo(_welcome(stack, settings), err=True)
        click.echo(f"dartspec up ready on {stack.gateway}")
        sys.stdout.flush()
        await asyncio.wait([stopped, failed], return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if failed.done():
            error = failed.result()
            click.echo(f"error: {error.message}\nstopping the other services", err=True)
            return exit_code(error)
        failed.cancel()
        click.echo("stopping", err=True)
        return 0


async def _fatal_failure(services: Services, verifiers: int) -> DartspecError:
    """What ended the stack: the gateway's failure, or that of the last verifier. Others are warned of."""
    while True:
        name, error = await services.next_failure()
        verifiers -= name.startswith("verifier")
        if name == "ngram":
            click.echo(f"warning: {error.message}; the verifier's own chains stand in", err=True)
        elif name.startswith("verifier") and verifiers:
            click.echo(f"warning: {error.message}; verifiers that still run: {verifiers}", err=True)
        else:
            return error


def _welcome(stack: Stack, settings: StackSettings) -> str:
    index = f"n-gram index {stack.index}" if stack.index else "no n-gram index: the draft head's own chain"
    gateway = "" if stack.gateway == DEFAULT_LISTEN else f"--gateway {stack.gateway} "
    hint = f"{_own_command()} generate {gateway}'What is a prime number?'"
    api = f"\nOpenAI-style API: {stack.http}/v1" if stack.http else ""
    return f"{stack.target}, {index}{api}\ntry: {hint}   (Ctrl-C stops)"


def _own_command() -> str:
    """How to call this command once more, as it was called."""
    called = sys.argv[0]
    if Path(called).name != "dartspec" or called == shutil.which("dartspec"):
        return "dartspec"
    return shlex.quote(called)


def _print_log(name: str, line: str) -> None:
    click.echo(f"{name}: {line}", err=True)
