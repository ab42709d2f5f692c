"""`dartspec ngram`."""

from __future__ import annotations

import json
from pathlib import Path

import click

from dartspec.services.common.config import options
from dartspec.services.ngram.config import BuildSettings, ImportSettings, ServeSettings

PREFIX = "DARTSPEC_NGRAM"
_FILE = click.Path(path_type=Path, dir_okay=False)


@click.group()
def ngram() -> None:
    """n-gram counts and the tree search over them."""


@ngram.command()
@options(ServeSettings, PREFIX)
def serve(settings: ServeSettings) -> None:
    """Serve indexes over gRPC until SIGINT or SIGTERM.

    Prints one line on stdout when it is ready; logs go to stderr. SIGHUP replaces the indexes whose files are others
    now, without dropping a call.
    """
    import asyncio
    import logging

    logging.basicConfig(level=settings.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s %(message)s")
    from dartspec.services.ngram.serve import serve as run

    asyncio.run(run(settings))


@ngram.command()
@click.argument("shards", nargs=-1, required=True, type=_FILE)
@click.option("--output", "-o", required=True, type=_FILE, help="The index (.ngx) to write.")
@options(BuildSettings, PREFIX)
def build(shards: tuple[Path, ...], output: Path, settings: BuildSettings) -> None:
    """Count token shards into an index.

    SHARDS are .npz files (tokens, offsets), .jsonl files (a list of ids a line, alone or under "ids"), or text files
    with the ids of one document a line. Takes 8 to 16 bytes of memory a token and 20 for each distinct n-gram.
    """
    from dartspec.services.ngram.build import build_index
    from dartspec.services.ngram.vocabulary import vocabulary

    vocab = vocabulary(settings)
    nodes = build_index(
        shards,
        output,
        order=settings.order,
        vocab_size=vocab.size,
        fingerprint=vocab.fingerprint,
        quiet=settings.quiet,
    )
    _report(output, nodes)


@ngram.command("import")
@click.argument("trie", type=_FILE)
@click.option("--output", "-o", required=True, type=_FILE, help="The index (.ngx) to write.")
@options(ImportSettings, PREFIX)
def import_(trie: Path, output: Path, settings: ImportSettings) -> None:
    """Turn the public implementation's TRIE file into an index."""
    from dartspec.services.ngram.build import import_index
    from dartspec.services.ngram.vocabulary import vocabulary

    vocab = vocabulary(settings)
    nodes = import_index(trie, output, vocab_size=vocab.size, fingerprint=vocab.fingerprint, quiet=settings.quiet)
    _report(output, nodes)


@ngram.command()
@click.argument("index", type=_FILE)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--pages", is_flag=True, help="Say too how much of it is in memory, and on which memory nodes.")
def inspect(index: Path, as_json: bool, pages: bool) -> None:
    """Print what is inside an index."""
    import ngram_index

    from dartspec.services.ngram import describe
    from dartspec.services.ngram import pages as in_memory
    from dartspec.services.ngram.errors import index_errors

    with index_errors():
        opened = ngram_index.Index.open(index)
        what = describe.description(opened)
        report = in_memory.page_report(opened) if pages else None
    if as_json:
        click.echo(json.dumps(what if report is None else {**what, "pages": report}))
        return
    click.echo(describe.text(what))
    if report is not None:
        click.echo(in_memory.text(report))


@ngram.command()
@click.argument("index", type=_FILE)
def verify(index: Path) -> None:
    """Check every byte of an index."""
    import ngram_index

    from dartspec.services.ngram.errors import index_errors

    with index_errors():
        ngram_index.Index.open(index).verify()
    click.echo(f"{index}: ok")


def _report(output: Path, nodes: list[int]) -> None:
    counts = ", ".join(f"{count:,} {length}-grams" for length, count in enumerate(nodes, start=1))
    click.echo(f"{output}: {counts}, {output.stat().st_size:,} bytes")
