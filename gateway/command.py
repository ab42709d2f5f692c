"""`dartspec gateway`: the command line."""

from __future__ import annotations

import asyncio
import logging
import sys

import click

from dartspec.gateway.config import Settings
from dartspec.services.common.config import options


@click.group()
def gateway() -> None:
    """Owns requests from prompt to last token, and drives them round by round."""


@gateway.command()
@options(Settings, "DARTSPEC_GATEWAY")
def serve(settings: Settings) -> None:
    """Answer Generate calls with the verifiers given here or announced later."""
    from dartspec.gateway.serve import serve as run

    logging.basicConfig(
        stream=sys.stderr, level=settings.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    asyncio.run(run(settings))
