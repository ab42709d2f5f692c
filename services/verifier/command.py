"""`dartspec verifier`."""

from __future__ import annotations

import click

from dartspec.services.common.config import options
from dartspec.services.common.logs import set_up_logs
from dartspec.services.verifier.config import VerifierSettings


@click.group()
def verifier() -> None:
    """The target model with its draft head."""


@verifier.command()
@options(VerifierSettings, "DARTSPEC_VERIFIER")
def serve(settings: VerifierSettings) -> None:
    """Serve one model over gRPC until SIGINT or SIGTERM.

    Prints one line on stdout when it is ready; logs go to stderr.
    """
    import asyncio

    set_up_logs(settings.log_level, settings.log_format)
    from dartspec.services.verifier.serve import serve as run

    asyncio.run(run(settings))
