"""Memory-mapped n-gram counts of token ids, and the tree search over them."""

from collections.abc import Callable, Sequence
from os import PathLike
from types import TracebackType
from typing import Any, Literal, TypeAlias, TypedDict

__version__: str
FILE_FORMAT: int
"""Version of the files that are written and read."""

Buffer: TypeAlias = Any
"""Anything with the buffer protocol, such as a numpy array; typing knows the protocol from Python 3.12."""

Progress = Callable[[str, int, int], object]
"""Called with the stage (read, sort, count or write), what is done and the total; an exception stops the operation."""

def default_weights(*, transitions: bool, counts: bool = True) -> tuple[float, float]:
    """Weights of counts and transition scores in searches that name neither; counts: whether those have any weight."""

class NgramError(Exception):
    """Anything that the index refuses."""

    code: Literal[
        "invalid_argument",
        "not_an_index",
        "newer_version",
        "older_version",
        "truncated",
        "corrupt",
        "io",
        "address_in_use",
        "interrupted",
    ]
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

    def children(self, length: int, most: int) -> tuple[int, list[int], int]:
        """How many different tokens follow the n-grams of a length from 1 to order - 1.

        Returns (n-grams looked at, how many of them have a number of continuations of 0, 1, 2, ... bits, all
        continuations), from at most ``most`` lines of the table: a fair sample.
        """

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
        transitions: Buffer | None = None,
        *,
        mode: str = "survival",
        score_rule: str = "auto",
        backoff_factor: float = 0.4,
        node_budget: int = 59,
        beam_width: int = 20,
        skip_ngram_at_first_level: bool = False,
        stop_token_ids: Sequence[int] = (),
        ngram_weight: float | None = None,
        transition_weight: float | None = None,
    ) -> Tree:
        """One tree; mode: survival or reference; score_rule: auto (the mode's own), reference, stupid_backoff,
        witten_bell or divided.

        token_ids int32 and logprobs float32 [sum of widths], widths[i] of them for offset i + 1. transitions float32
        [sum of widths[i] * widths[i + 1]]: for each offset but the first a row for each candidate of the offset before,
        with the scores of this offset's candidates after it.
        """

    def search_batch(
        self,
        queries: Sequence[tuple[Sequence[int], Sequence[int], Buffer, Buffer, Buffer | None]],
        *,
        threads: int = 1,
        mode: str = "survival",
        score_rule: str = "auto",
        backoff_factor: float = 0.4,
        node_budget: int = 59,
        beam_width: int = 20,
        skip_ngram_at_first_level: bool = False,
        stop_token_ids: Sequence[int] = (),
        ngram_weight: float | None = None,
        transition_weight: float | None = None,
    ) -> list[Tree]:
        """A tree for each (context, widths, token_ids, logprobs), the same for any number of threads."""

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
    """Counts documents of token ids in bounded memory, and can go on after a kill."""

    def __init__(
        self,
        order: int,
        vocab_size: int,
        folder: str | PathLike[str] | None = None,
        memory: int = 268435456,
        identity: str = "{}",
        restart: bool = False,
    ) -> None:
        """folder: where runs and journal are kept and found again, if identity (JSON) is the same; None: nowhere.

        memory: bytes of all buffers. restart: throw away what is in the folder.
        """

    @property
    def position(self) -> str:
        """Where to go on reading: what `add` was told last before the build was stopped; "" is the start."""

    @property
    def covered(self) -> int:
        """Tokens that an earlier run of this build has counted."""

    @property
    def tokens(self) -> int:
        """Tokens added so far, those before `position` included."""

    @property
    def documents(self) -> int:
        """Documents added to this object."""

    def add(self, tokens: Buffer, offsets: Buffer, position: str = "", unfinished: bool = False) -> None:
        """Documents as tokens uint16 or uint32 [T] and offsets int64 [documents + 1].

        position: where they start, in the caller's words. unfinished: the last one goes on in the next call.
        """

    def prune(self, min_counts: Sequence[int], renormalise: bool = False, target_bytes: int | None = None) -> None:
        """Leave out n-grams seen less often than min_counts, by length; raise them until the file is small enough."""

    def close(self) -> None:
        """Stop and keep the folder for a later build, if it holds a run. The builder is used up."""

    def discard(self) -> None:
        """Stop and remove the folder. The builder is used up."""

    def finish(
        self, path: str | PathLike[str], fingerprint: str, manifest: str = "{}", progress: Progress | None = None
    ) -> tuple[list[int], list[int]]:
        """Count and write the file; distinct n-grams and smallest counts kept, by length. The builder is used up."""

def import_trie(
    source: str | PathLike[str],
    path: str | PathLike[str],
    vocab_size: int,
    fingerprint: str,
    manifest: str = "{}",
    progress: Progress | None = None,
    memory: int = 1073741824,
) -> list[int]:
    """Import the public implementation's .trie file and return the distinct n-grams by length."""

def merge(
    sources: Sequence[tuple[str | PathLike[str], float]],
    path: str | PathLike[str],
    manifest: str = "{}",
    progress: Progress | None = None,
    memory: int = 1073741824,
    min_counts: Sequence[int] = (),
    renormalise: bool = False,
    target_bytes: int | None = None,
) -> tuple[list[int], list[int]]:
    """Add up indexes (path, weight); distinct n-grams and smallest counts kept, by length."""

class Loading:
    """An index that is being opened and read in a thread of its own, which does not keep the process alive."""

    def __init__(self, path: str | PathLike[str], backing: str = "populate") -> None:
        """Begin; backing: mmap, populate or copy."""

    @property
    def progress(self) -> tuple[int, int]:
        """Bytes in memory so far, and bytes in all; (0, 0) before the file is open and when nothing is to be read."""

    @property
    def finished(self) -> bool:
        """Whether `result` answers at once."""

    def stop(self) -> None:
        """End soon; `result` raises NgramError with the code interrupted then."""

    def result(self) -> Index:
        """Wait for the index, which is handed out once. Signals interrupt it."""

class Pages(TypedDict):
    """Where the pages of an index are."""

    resident_bytes: int
    page_bytes: int
    sampled: int
    """Pages whose memory node was asked for: all resident ones of a small file, every n-th one of a large file."""
    by_node: dict[int, int]
    """Sampled pages by node."""

def pages(index: Index) -> Pages:
    """Which memory nodes the pages of an index are on. Reads nothing from disk."""

def resident_bytes(index: Index) -> int:
    """Bytes of an index that are in memory, whichever process read them."""

def set_numa_policy(policy: str) -> None:
    """Where this thread, and those it starts from now on, run and get new memory: off, interleave or bind:N."""

Times: TypeAlias = tuple[list[int], float]
"""How often within each bound and beyond the last one, not cumulated; and the seconds of all together."""

class Metrics(TypedDict):
    """What a server counted since its start."""

    bounds: list[float]
    """Upper bounds of the buckets of all times, seconds."""
    calls: list[tuple[str, int, int]]
    """(method, number of the gRPC status, calls)."""
    call_times: list[tuple[str, Times]]
    """By method."""
    search_times: Times
    """A query of Search or SearchStream each."""
    score_queries: int
    contexts: int
    """Different contexts of each searched query whose continuations were looked up, summed."""
    nodes_by_matched: list[int]
    """Nodes of the answered trees by the tokens of the longest context that knew them as a continuation, from 0."""
    queue: tuple[int, int]
    """Queries that wait or are worked on, and the most of them."""
    streams: tuple[int, int]
    """Open search streams, and the most of them."""

class Relay:
    """Rounds streams to verifiers and searches of what they offer, in a thread of their own. Made for one user.

    An offer, which is a round with proposals, is answered with a `verify` of the tree that an ngram service finds, as
    often as was allowed for its session. Unknown streams and sessions are ignored: they may have ended by themselves.
    """

    def __init__(self) -> None: ...
    def fileno(self) -> int:
        """A file descriptor that is readable while something waits to be taken."""

    def take(self) -> list[tuple[Any, ...]]:
        """What has come since the last time, in order, each with its kind and the number of its stream.

        ("message", stream, data, sessions): a serialised RoundsResponse; offers of the sessions are being answered.
        ("answered", stream, sessions, search_us): they were told to verify. search_us: in the service, all together.
        ("unanswered", stream, sessions, code, reason): nothing was sent, for there were no trees; a google.rpc.Code.
        ("ended", stream, code, message, details): a google.rpc.Code, and a serialised google.rpc.Status or nothing.
        """

    def open(self, address: str) -> int:
        """Connect to "host:port" or "unix:/path"; gives the stream's number. A failure is an end of the stream."""

    def send(self, stream: int, message: bytes) -> None:
        """A serialised RoundsRequest."""

    def close(self, stream: int) -> None:
        """End a stream; nothing more comes of it."""

    def route(self, stream: int, route: tuple[str, bytes, int] | None) -> None:
        """Where offers are searched from now on: address, serialised SearchRequest without queries, milliseconds."""

    def follow(self, stream: int, session: int, context: Sequence[int]) -> None:
        """A session is about to be opened; its last tokens."""

    def allow(self, stream: int, session: int, offers: int) -> None:
        """Answer so many more offers of a session, whatever was allowed before."""

    def forget(self, stream: int, session: int) -> None:
        """A session has ended."""

    def stop(self) -> None:
        """End everything."""

class Server:
    """dartspec.v1.NgramService over indexes for different tokenizers, with health and reflection."""

    def __init__(
        self,
        indexes: Sequence[Index],
        listen: Sequence[str],
        *,
        max_message_bytes: int = 67108864,
        max_queries: int = 4096,
        max_queue: int = 16384,
        max_streams: int = 256,
        threads: int = 2,
        ready: bool = True,
    ) -> None:
        """Serve "host:port" (0: a free port) and "unix:/path" addresses in background threads from now on.

        max_queries: of one request; max_queue: waiting or worked on; max_streams: open SearchStream calls; ready:
        whether health is SERVING from the start, else from set_ready on.
        """

    def set_ready(self) -> None:
        """Report SERVING from now on."""

    def swap(self, index: Index) -> None:
        """Serve another index for the same tokenizer from now on; calls that run keep the old one."""

    @property
    def indexes(self) -> list[Index]:
        """The indexes that are served, by fingerprint."""

    def metrics(self) -> Metrics:
        """What was counted since the start."""

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
