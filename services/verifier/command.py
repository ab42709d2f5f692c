"""`dartspec verifier`."""

from __future__ import annotations

from pathlib import Path

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


@verifier.command()
@click.argument("source")
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False))
@click.option("--revision", default="", help="Revision of a hub id.")
def fetch(source: str, directory: Path, revision: str) -> None:
    """Put a model or a head into DIRECTORY, complete or not at all; does nothing when one is there.

    SOURCE is what --model takes: a directory, a hub id, a .gguf file, or smollm2-135m.
    """
    from dartspec.services.verifier.fetch import fetch as run

    done = run(source, directory, revision or None)
    click.echo(f"{directory}: {'ready' if done else 'was there already'}")
