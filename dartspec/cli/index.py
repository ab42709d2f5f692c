"""Which n-gram index a stack searches: a file, none, or the one counted from the corpus that ships for the model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import grpc

from dartspec.cli.locations import CORPUS_FILE, cache_directory, shipped_directory
from dartspec.cli.process import Program
from dartspec.cli.target_description import TargetDescription
from dartspec.services.common.channel import error_from_rpc, open_channel
from dartspec.services.common.errors import FailedPrecondition
from dartspec.services.common.fingerprint import digest
from dartspec.v1 import ngram_pb2, ngram_pb2_grpc

NO_INDEX = "none"
# Format of the files; one in the cache from another version of the program has another name.
FILE_FORMAT = 2
CALL_SECONDS = 10.0


@dataclass(frozen=True)
class IndexChoice:
    """The index file, and the corpus to count it from where it does not exist yet."""

    path: Path
    corpus: Path | None = None

    @property
    def missing(self) -> bool:
        """Whether it has to be built first."""
        return self.corpus is not None and not self.path.is_file()


def choose_index(index: str | None, model: str) -> IndexChoice | None:
    """What ``--index`` means for a model; without it the model's own corpus, if one ships. None: no index.

    The file that is counted from a corpus is kept in the cache, named after the corpus and the format of such files.
    """
    if index is not None:
        return None if index == NO_INDEX else IndexChoice(Path(index).expanduser())
    shipped = shipped_directory(model)
    corpus = shipped / CORPUS_FILE if shipped is not None else None
    if corpus is None or not corpus.is_file():
        return None
    name = f"{model}-{digest(corpus.read_bytes())}.v{FILE_FORMAT}.ngx"
    return IndexChoice(cache_directory() / "index" / name, corpus)


def build_program(choice: IndexChoice, target: TargetDescription) -> Program:
    """The command that counts the corpus into the cache. Raises FailedPrecondition when that cannot be written."""
    try:
        choice.path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FailedPrecondition(f"index: cannot make {choice.path.parent}: {error}; set XDG_CACHE_HOME") from error
    return Program(
        "index",
        (
            *("ngram", "build", str(choice.corpus), "--output", str(choice.path), "--quiet"),
            *("--vocab-size", str(target.vocab_size), "--fingerprint", target.tokenizer_fingerprint),
        ),
    )


async def check_index(address: str, target: TargetDescription) -> None:
    """Raise FailedPrecondition when the ngram service at ``address`` has no index for the target's tokenizer."""
    async with open_channel(address) as channel:
        stub = ngram_pb2_grpc.NgramServiceStub(channel)
        try:
            answer = await stub.Describe(ngram_pb2.NgramServiceDescribeRequest(), timeout=CALL_SECONDS)
        except grpc.aio.AioRpcError as error:
            raise error_from_rpc(error, f"ngram {address}") from error
    found = {index.tokenizer_fingerprint: index.path for index in answer.indexes}
    if target.tokenizer_fingerprint not in found:
        listed = ", ".join(f"{path} for tokenizer {fingerprint}" for fingerprint, path in found.items())
        raise FailedPrecondition(
            f"index: {listed}, but the tokenizer of {target.model} is {target.tokenizer_fingerprint}; "
            "build an index for it with 'dartspec ngram build', or use --index none",
            field="index",
        )
