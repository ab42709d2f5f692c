"""`dartspec doctor`: whether this machine can run a stack."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator

import click

from dartspec.cli import checks
from dartspec.cli.checks import FAIL, Finding
from dartspec.cli.exit_codes import FAILED
from dartspec.cli.locations import BUILT_IN_MODEL
from dartspec.cli.up import DEFAULT_LISTEN
from dartspec.services.common.machine import read_machine

MARKS = {"ok": "ok  ", "warn": "warn", "fail": "FAIL"}
NAME_WIDTH = 20


@click.command()
@click.option("--model", default=BUILT_IN_MODEL, show_default=True, help="Target that the stack would serve.")
@click.option("--head", help="Draft head: a directory, a hub id or 'none'.  [default: the one made for the model]")
@click.option("--index", help="n-gram index file or 'none'.  [default: the built-in model's, else none]")
@click.option("--device", default="auto", show_default=True, help="auto, cpu or cuda.")
@click.option(
    "--listen", multiple=True, default=(DEFAULT_LISTEN,), show_default=True, help="Address of the gateway; repeatable."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of a table.")
def doctor(model: str, head: str | None, index: str | None, device: str, listen: tuple[str, ...], as_json: bool) -> int:
    """Say whether this machine can run a stack; exit code 1 when something makes it impossible."""
    findings = []
    for finding in _findings(model, head, index, device, listen):
        findings.append(finding)
        if not as_json:
            click.echo(f"{MARKS[finding.status]}  {finding.name:<{NAME_WIDTH}} {finding.detail}")
    failed = [finding for finding in findings if finding.status == FAIL]
    if as_json:
        click.echo(json.dumps({"possible": not failed, "findings": [dataclasses.asdict(item) for item in findings]}))
    elif failed:
        click.echo(f"a stack cannot run here: {', '.join(finding.name for finding in failed)}")
    else:
        click.echo("a stack can run here")
    return FAILED if failed else 0


def _findings(
    model: str, head: str | None, index: str | None, device: str, listen: tuple[str, ...]
) -> Iterator[Finding]:
    yield from checks.check_machine(read_machine(), device)
    yield from checks.check_packages()
    yield checks.check_extension()
    yield from checks.check_torch()
    yield checks.check_model(model)
    yield checks.check_head(head, model)
    yield checks.check_index(index, model)
    yield from checks.check_ports(listen)
    yield checks.check_cache()
