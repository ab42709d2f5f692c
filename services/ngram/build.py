"""Building an index from a corpus, or from the public implementation's file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import ngram_index

from dartspec.services.common.errors import DartspecError, FailedPrecondition, InvalidArgument
from dartspec.services.ngram.corpus import Corpus
from dartspec.services.ngram.errors import index_errors
from dartspec.services.ngram.inputs import Reading, Source, find_sources
from dartspec.services.ngram.progress import reading_bar, stages
from dartspec.services.ngram.pruning import Pruning
from dartspec.services.ngram.tally import Tally

MADE_BY = f"dartspec-ngram-index {ngram_index.__version__}"
DEFAULT_MEMORY = 1 << 30
# What the interpreter, its libraries and a few batches take, in bytes; the rest of the memory is for counting.
_OVERHEAD = 160 << 20


@dataclass(frozen=True)
class Built:
    """Distinct n-grams and smallest counts kept, by length."""

    nodes: list[int]
    kept: list[int]


def build_index(
    inputs: Sequence[Path],
    output: Path,
    *,
    order: int,
    vocab_size: int,
    fingerprint: str,
    memory: int = DEFAULT_MEMORY,
    reading: Reading | None = None,
    pruning: Pruning | None = None,
    restart: bool = False,
    quiet: bool = False,
) -> Built:
    """Count the documents of all inputs into ``output``, within about ``memory`` bytes.

    Equal inputs and settings give equal files, whatever the memory. What is done is kept in ``OUTPUT.build``: the same
    call goes on after a kill; ``restart`` throws it away. Raises InvalidArgument or NotFound naming the input, and
    leaves nothing then; FailedPrecondition when a file cannot be written, and can be resumed then.
    """
    reading, pruning = reading or Reading(), pruning or Pruning()
    sources = find_sources(inputs, reading)
    work = output.with_name(output.name + ".build")
    identity = _identity(sources, reading, order=order, vocab_size=vocab_size, fingerprint=fingerprint)
    with index_errors():
        builder = ngram_index.Builder(order, vocab_size, work, buffer_bytes(memory), identity, restart)
    try:
        with index_errors():
            builder.prune(list(pruning.min_counts), pruning.renormalise, pruning.target_bytes)
        tally = _read(builder, sources, reading, quiet)
    except BaseException as error:
        # Wrong input must be changed, and then everything is counted again; otherwise what is done is kept.
        if _is_wrong_input(error):
            builder.discard()
        else:
            builder.close()
        raise
    manifest = {"made_by": MADE_BY, **tally.manifest(builder.tokens)}
    if reading.parts > 1:
        manifest["part"] = f"{reading.part + 1}/{reading.parts}"
    with stages(quiet) as progress, index_errors():
        return Built(*builder.finish(output, fingerprint, json.dumps(manifest, sort_keys=True), progress))


def _read(builder: ngram_index.Builder, sources: list[Source], reading: Reading, quiet: bool) -> Tally:
    """Hand the documents to the builder, from where it stands."""
    tally = Tally.parse(builder.position)
    corpus = Corpus(reading)
    with reading_bar(sum(source.bytes for source in sources), quiet) as bar:
        before = sum(source.bytes for source in sources[: tally.source])
        for source in sources[tally.source :]:
            for batch in corpus.batches(source, tally.document):
                try:
                    with index_errors():
                        builder.add(batch.tokens, batch.offsets, tally.position(), batch.unfinished)
                except InvalidArgument as error:
                    raise InvalidArgument("inputs", f"{source.path}: {error.message}") from error
                tally.add(batch)
                bar.update(before + batch.done - bar.n)
            if not source.unchanged():
                raise FailedPrecondition(f"{source.path} has changed while it was read; build again with --restart")
            tally.close(source, builder.tokens)
            before += source.bytes
            bar.update(before - bar.n)
    return tally


def buffer_bytes(memory: int) -> int:
    """What ``memory`` bytes of a process leave for counting and sorting."""
    return max(memory - _OVERHEAD, memory // 4)


def _identity(sources: list[Source], reading: Reading, **settings: Any) -> str:
    """All that the counts depend on."""
    inputs = [[source.name, source.kind, source.bytes, source.mtime_ns] for source in sources]
    described = asdict(reading)
    if reading.tokenizer:
        status = (Path(reading.tokenizer)).stat()
        described["tokenizer"] = [reading.tokenizer, status.st_mtime_ns]
    return json.dumps({"made_by": MADE_BY, **settings, "reading": described, "inputs": inputs})


def _is_wrong_input(error: BaseException) -> bool:
    return isinstance(error, DartspecError) and not isinstance(error, FailedPrecondition)


def import_index(
    source: Path,
    output: Path,
    *,
    vocab_size: int,
    fingerprint: str,
    memory: int = DEFAULT_MEMORY,
    quiet: bool = False,
) -> list[int]:
    """Import a `.trie` file of the public implementation; returns the distinct n-grams by length."""
    manifest = json.dumps({"made_by": MADE_BY, "imported": source.name}, sort_keys=True)
    buffers = buffer_bytes(memory)
    with stages(quiet) as progress, index_errors():
        return ngram_index.import_trie(source, output, vocab_size, fingerprint, manifest, progress, buffers)
