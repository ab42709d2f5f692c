"""`dartspec ngram`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import click

from dartspec.services.common.config import options
from dartspec.services.common.logs import set_up_logs
from dartspec.services.common.size import parse_size
from dartspec.services.ngram.config import BuildSettings, ImportSettings, MergeSettings, ServeSettings

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

    set_up_logs(settings.log_level, settings.log_format)
    from dartspec.services.ngram.serve import serve as run

    asyncio.run(run(settings))


@ngram.command()
@click.argument("inputs", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--output", "-o", required=True, type=_FILE, help="The index (.ngx) to write.")
@options(BuildSettings, PREFIX)
def build(inputs: tuple[Path, ...], output: Path, settings: BuildSettings) -> None:
    """Count a corpus into an index.

    INPUTS are files, or folders that are walked. With --tokenizer they may hold text: plain files, JSON lines (--field,
    or chat "messages"), Parquet files. Token ids come as .npz files (tokens, offsets), .jsonl files (a list of ids a
    line, alone or under "ids", or texts of `dartspec draft generate`, whose answers count), Parquet columns, or text
    files with the ids of one document a line. Lines may be packed (.jsonl.gz, .txt.gz).

    A build that was stopped goes on where it was when the same command is given again.
    """
    from dartspec.services.ngram.build import build_index
    from dartspec.services.ngram.vocabulary import vocabulary

    vocab = vocabulary(settings)
    built = build_index(
        inputs,
        output,
        order=settings.order,
        vocab_size=vocab.size,
        fingerprint=vocab.fingerprint,
        memory=parse_size(settings.memory),
        reading=settings.reading(),
        pruning=settings.pruning(),
        restart=settings.restart,
        quiet=settings.quiet,
    )
    _report(output, built.nodes, built.kept)


@ngram.command()
@click.argument("indexes", nargs=-1, required=True, type=_FILE)
@click.option("--output", "-o", required=True, type=_FILE, help="The index (.ngx) to write.")
@click.option("--weight", "weights", multiple=True, type=float, help="Weight of each index in turn; default: 1.")
@options(MergeSettings, PREFIX)
def merge(indexes: tuple[Path, ...], output: Path, weights: tuple[float, ...], settings: MergeSettings) -> None:
    """Add up indexes of one tokenizer and order.

    Counts are multiplied by the weights and rounded to nearest, at least 1 and at least what continued them. Parts made
    with --shard add up to what one build of all would have made. The mapped pages of one index come on top of --memory.
    """
    from dartspec.services.ngram.merge import merge_indexes

    built = merge_indexes(
        indexes,
        output,
        weights=weights,
        memory=parse_size(settings.memory),
        pruning=settings.pruning(),
        quiet=settings.quiet,
    )
    _report(output, built.nodes, built.kept)


@ngram.command("import")
@click.argument("trie", type=_FILE)
@click.option("--output", "-o", required=True, type=_FILE, help="The index (.ngx) to write.")
@options(ImportSettings, PREFIX)
def import_(trie: Path, output: Path, settings: ImportSettings) -> None:
    """Turn the public implementation's TRIE file into an index."""
    from dartspec.services.ngram.build import import_index
    from dartspec.services.ngram.vocabulary import vocabulary

    vocab = vocabulary(settings)
    nodes = import_index(
        trie,
        output,
        vocab_size=vocab.size,
        fingerprint=vocab.fingerprint,
        memory=parse_size(settings.memory),
        quiet=settings.quiet,
    )
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


def _report(output: Path, nodes: Sequence[int], kept: Sequence[int] = ()) -> None:
    from dartspec.services.ngram.pruning import describe_kept

    counts = ", ".join(f"{count:,} {length}-grams" for length, count in enumerate(nodes, start=1))
    left_out = describe_kept(kept)
    click.echo(f"{output}: {counts}, {output.stat().st_size:,} bytes{', ' if left_out else ''}{left_out}")
