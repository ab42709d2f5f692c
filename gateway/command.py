"""`dartspec gateway`: the command line."""

from __future__ import annotations

import asyncio

import click

from dartspec.gateway.config import Settings
from dartspec.services.common.config import options
from dartspec.services.common.logs import set_up_logs


@click.group()
def gateway() -> None:
    """Owns requests from prompt to last token, and drives them round by round."""


@gateway.command()
@options(Settings, "DARTSPEC_GATEWAY")
def serve(settings: Settings) -> None:
    """Answer Generate calls with the verifiers given here or announced later."""
    from dartspec.gateway.serve import serve as run

    set_up_logs(settings.log_level, settings.log_format)
    asyncio.run(run(settings))
