"""Token shards of real text: `python -m bench.corpus SOURCE... --output FOLDER`.

Each source is a folder, a Debian package, a wheel or a source archive. Their Python files, manuals and pages are
turned into text, equal documents are kept once, and every shard is a random sample of the documents, chosen by their
hash: `held-out.npz` (one document in fifty) and `shard-NN.npz`, each `tokens` uint16 or uint32 [T] and `offsets`
int64 [documents + 1]. The last line is a JSON object.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer
from tqdm import tqdm

from bench.corpus_text import documents
from bench.shards import write_shard

# A fiftieth is held out; the other documents go to a shard a fiftieth each.
PARTS = 50
BATCH = 32

Tokenised = list[tuple[int, NDArray[Any]]]
"""Hash of the text and its tokens, a document each."""


def tokenise(source: Path, tokenizer: Path, most_bytes: int) -> Tokenised:
    """The documents of one source."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    encoder = Tokenizer.from_file(str(tokenizer))
    dtype = np.uint16 if encoder.get_vocab_size() <= 1 << 16 else np.uint32
    result: Tokenised = []
    batch: list[str] = []

    def encode() -> None:
        for text, encoding in zip(batch, encoder.encode_batch_fast(batch, add_special_tokens=False), strict=True):
            digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
            result.append((int.from_bytes(digest, "little"), np.asarray(encoding.ids, dtype)))
        batch.clear()

    for text in documents(source, most_bytes):
        batch.append(text)
        if len(batch) == BATCH:
            encode()
    encode()
    return result


def part(digest: int) -> int:
    """The part that a document belongs to; 0 is held out."""
    return digest % PARTS


def tokenizer_file(name: str) -> Path:
    """A tokenizer.json, from the file, its folder, or the name of a model."""
    path = Path(name)
    if path.is_file():
        return path
    if not (path / "tokenizer.json").is_file():
        from dartspec.services.draft.convert_gguf import resolve_model

        path = resolve_model(name)
    return path / "tokenizer.json"


def sources(paths: tuple[Path, ...]) -> list[Path]:
    """The paths, folders replaced by what they hold, largest first."""
    found: list[Path] = []
    for path in paths:
        found += sorted(path.iterdir()) if path.is_dir() else [path]
    archives = (".whl", ".zip", ".deb", ".gz", ".xz", ".bz2")
    found = [path for path in found if path.is_dir() or path.suffix in archives]
    return sorted(found, key=lambda path: 0 if path.is_dir() else -path.stat().st_size)


@click.command(help=__doc__)
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True))
@click.option("--output", "-o", required=True, type=click.Path(path_type=Path), help="Folder for the shards.")
@click.option("--tokenizer", default="smollm2-135m", show_default=True, help="tokenizer.json, its folder, or a model.")
@click.option("--max-tokens", default=300_000_000, show_default=True, help="Stop after so many tokens.")
@click.option("--source-mb", default=16, show_default=True, help="Most text of one source, in million characters.")
@click.option("--processes", default=2, show_default=True, help="Sources tokenised at a time.")
def main(
    paths: tuple[Path, ...], output: Path, tokenizer: str, max_tokens: int, source_mb: int, processes: int
) -> None:
    output.mkdir(parents=True, exist_ok=True)
    work = partial(tokenise, tokenizer=tokenizer_file(tokenizer), most_bytes=source_mb * 1_000_000)
    parts: list[list[NDArray[Any]]] = [[] for _ in range(PARTS)]
    known: set[int] = set()
    tokens = repeated = 0
    found = sources(paths)
    with (
        multiprocessing.get_context("spawn").Pool(processes, maxtasksperchild=8) as pool,
        tqdm(total=len(found), unit="source") as bar,
    ):
        for result in pool.imap_unordered(work, found):
            for digest, ids in result:
                if digest in known:
                    repeated += 1
                    continue
                known.add(digest)
                parts[part(digest)].append(ids)
                tokens += len(ids)
            bar.update()
            bar.set_postfix(tokens=f"{tokens:,}")
            if tokens >= max_tokens:
                pool.terminate()
                break
    for number, documents_of_part in enumerate(parts):
        if documents_of_part:
            name = "held-out.npz" if number == 0 else f"shard-{number:02}.npz"
            write_shard(output / name, documents_of_part)
    held_out = sum(len(ids) for ids in parts[0])
    report = {"tokens": tokens, "held_out_tokens": held_out, "documents": len(known), "repeated": repeated}
    print(json.dumps(report))


if __name__ == "__main__":
    main()
