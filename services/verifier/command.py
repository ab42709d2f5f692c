"""`dartspec verifier`."""

from __future__ import annotations

import click

from dartspec.services.common.config import options
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
    import logging

    logging.basicConfig(level=settings.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s %(message)s")
    from dartspec.services.verifier.serve import serve as run

    asyncio.run(run(settings))
