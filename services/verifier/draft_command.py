"""`dartspec draft generate`, which needs an engine."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager

import click

from dartspec.services.common.config import options
from dartspec.services.draft.texts.settings import GenerateSettings
from dartspec.services.draft.texts.write import Writer

INTERRUPTED = 130  # as of every command that Ctrl-C ends


@click.command()
@options(GenerateSettings, "DARTSPEC_DRAFT_GENERATE")
def generate(settings: GenerateSettings) -> None:
    """Write texts to train on: every prompt, answered once at each temperature by the target.

    The engine runs in this process, unless --gateway names a cluster's. A run that was ended goes on where it was when
    the same command is given again. The last line on stdout is a JSON object with what was written.
    """
    from dartspec.services.draft.convert_gguf import PACKAGED_MODEL, resolve_model
    from dartspec.services.draft.texts.run import run
    from dartspec.services.draft.texts.tokenizer import TextTokenizer

    def open_tokenizer() -> TextTokenizer:
        return TextTokenizer(resolve_model(settings.model or PACKAGED_MODEL, settings.revision or None))

    loading = True

    @contextmanager
    def open_writer(settings: GenerateSettings) -> Iterator[Writer]:
        nonlocal loading
        if settings.gateway:
            from dartspec.services.draft.texts.gateway_writer import GatewayWriter

            loading = False
            limits = (settings.concurrency, settings.max_new, settings.capacity)
            with GatewayWriter(settings.gateway, settings.model, *limits, settings.template_arguments) as far:
                yield far
            return
        from dartspec.services.verifier.engine_writer import engine_writer

        with engine_writer(settings) as near:
            loading = False
            yield near

    try:
        result = run(settings, open_writer, open_tokenizer)
    except KeyboardInterrupt:
        click.echo(f"\ninterrupted; the same command goes on where it was, with what is in {settings.out}", err=True)
        if loading:
            # The thread that loads is inside torch; an ordinary exit would pull the interpreter away from under it.
            os._exit(INTERRUPTED)
        raise
    click.echo(f"{result['texts']:,} texts with {result['tokens']:,} tokens of the target in {settings.out}", err=True)
    click.echo(json.dumps(result))
