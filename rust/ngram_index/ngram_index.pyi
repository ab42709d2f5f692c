"""Memory-mapped n-gram counts of token ids, and the tree search over them."""

from collections.abc import Callable, Sequence
from os import PathLike
from types import TracebackType
from typing import Any, Literal, TypeAlias

__version__: str

Buffer: TypeAlias = Any
"""Anything with the buffer protocol, such as a numpy array; typing knows the protocol from Python 3.12."""

Progress = Callable[[str, int, int], object]
"""Called with the stage (read, sort, count or write), what is done and the total; an exception stops the operation."""

class NgramError(Exception):
    """Anything that the index refuses."""

    code: Literal["invalid_argument", "not_an_index", "newer_version", "truncated", "corrupt", "io", "address_in_use"]
    field: str

class Index:
    """An open index. Threads may share it."""

    @staticmethod
    def open(path: str | PathLike[str], backing: str = "mmap") -> Index:
        """Open a file: checks the header, sizes and bounds. backing: mmap, populate (read it all now) or copy."""

    @property
    def path(self) -> str: ...
    @property
    def order(self) -> int: ...
    @property
    def vocab_size(self) -> int: ...
    @property
    def windows(self) -> int:
        """Tokens counted."""

    @property
    def fingerprint(self) -> str: ...
    @property
    def manifest(self) -> str:
        """What the counts were made from, as JSON."""

    @property
    def nodes(self) -> list[int]:
        """Distinct n-grams by length from 1."""

    @property
    def file_bytes(self) -> int: ...
    @property
    def sections(self) -> list[tuple[str, int, int, int, int]]:
        """(kind, level, offset, bytes, items) of each section."""

    def verify(self) -> None:
        """Check every byte of the file."""

    def count(self, tokens: Sequence[int]) -> int:
        """Count of an n-gram of 1 to order tokens; 0 if it was never seen."""

    def successors(self, context: Sequence[int]) -> list[tuple[int, int]]:
        """(token, count) of every token seen after 1 to order - 1 tokens, tokens ascending."""

    def score(self, context: Sequence[int], candidates: Sequence[int]) -> tuple[list[float], bytes]:
        """Relative frequencies after the longest suffix that knows each candidate, and that suffix's length."""

    def search(
        self,
        context: Sequence[int],
        widths: Sequence[int],
        token_ids: Buffer,
        logprobs: Buffer,
        *,
        mode: str = "survival",
        node_budget: int = 59,
        beam_width: int = 20,
        skip_ngram_at_first_level: bool = False,
        stop_token_ids: Sequence[int] = (),
        ngram_weight: float = 0.7,
    ) -> Tree:
        """One tree; mode: survival or reference.

        token_ids int32 and logprobs float32 [sum of widths], widths[i] of them for offset i + 1.
        """

class Tree:
    """Candidates for the positions after the pending token, packed as in dartspec.v1.Tree (little-endian)."""

    def __len__(self) -> int: ...
    @property
    def token_ids(self) -> bytes:
        """int32 [nodes]."""

    @property
    def parents(self) -> bytes:
        """int32 [nodes]; 0 is the root, node i is called i + 1."""

    @property
    def survival(self) -> bytes:
        """float32 [nodes]."""

    @property
    def feature_bins(self) -> bytes:
        """uint16 [nodes]."""

class Builder:
    """Counts documents of token ids; 8 bytes of memory a token, 16 when order ids need more than 64 bits."""

    def __init__(self, order: int, vocab_size: int) -> None: ...
    @property
    def tokens(self) -> int: ...
    @property
    def documents(self) -> int: ...
    def add(self, tokens: Buffer, offsets: Buffer) -> None:
        """Documents as tokens uint16 or uint32 [T] and offsets int64 [documents + 1]."""

    def finish(
        self, path: str | PathLike[str], fingerprint: str, manifest: str = "{}", progress: Progress | None = None
    ) -> list[int]:
        """Count, write the file and return the distinct n-grams by length. The builder is used up."""

def import_trie(
    source: str | PathLike[str],
    path: str | PathLike[str],
    vocab_size: int,
    fingerprint: str,
    manifest: str = "{}",
    progress: Progress | None = None,
) -> list[int]:
    """Import the public implementation's .trie file and return the distinct n-grams by length."""

class Server:
    """dartspec.v1.NgramService over indexes for different tokenizers, with health and reflection."""

    def __init__(
        self,
        indexes: Sequence[Index],
        listen: Sequence[str],
        *,
        max_message_bytes: int = 67108864,
        threads: int = 2,
    ) -> None:
        """Serve "host:port" (0: a free port) and "unix:/path" addresses in background threads from now on."""

    @property
    def addresses(self) -> list[str]:
        """What is served, free ports filled in."""

    @property
    def port(self) -> int | None:
        """The first TCP port."""

    def stop(self, grace_s: float = 5.0) -> bool:
        """Take no more calls, let running ones finish; returns whether all did."""

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for the end; returns whether it came. Signals interrupt it."""

    def __enter__(self) -> Server: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...
