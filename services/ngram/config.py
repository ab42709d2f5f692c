"""Settings of `dartspec ngram`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from dartspec.services.common.config import addresses, between, redis_url, setting, tcp_address
from dartspec.services.common.errors import InvalidArgument
from dartspec.services.common.logs import FORMATS
from dartspec.services.common.size import at_least, parse_size
from dartspec.services.ngram.inputs import FORMATS as INPUT_FORMATS
from dartspec.services.ngram.inputs import Reading
from dartspec.services.ngram.pruning import Pruning, parse_counts

_FINGERPRINT = re.compile(r"[0-9a-f]{8,64}")
_NUMA = re.compile(r"off|interleave|bind:[0-9]{1,4}")
MAX_MESSAGE_BYTES = 64 * 1024 * 1024  # as the other services take


def _fingerprint(value: str) -> str | None:
    if not value or _FINGERPRINT.fullmatch(value):
        return None
    return f"must be 8 to 64 lower-case hexadecimal digits, got {value!r}"


def _numa(value: str) -> str | None:
    if _NUMA.fullmatch(value):
        return None
    return f"must be off, interleave or bind:N with the number of a node, got {value!r}"


def _counts(value: str) -> str | None:
    try:
        parse_counts(value)
    except InvalidArgument as error:
        return error.message
    return None


def _part(value: str) -> str | None:
    match = re.fullmatch(r"([0-9]+)/([0-9]+)", value)
    if match and 1 <= int(match[1]) <= int(match[2]):
        return None
    return f"must be i/n with i from 1 to n, got {value!r}"


@dataclass(frozen=True)
class ServeSettings:
    """One ngram process."""

    index: tuple[str, ...] = setting((), "Index file (.ngx); repeatable, one a tokenizer.")
    listen: tuple[str, ...] = setting(
        ("127.0.0.1:7020",),
        'Address to serve on, "host:port" (0: a free port) or "unix:/path"; repeatable.',
        check=addresses,
    )
    backing: str = setting(
        "populate",
        "Where an index lives: mmap (read on first use), populate (mapped, read before ready) or copy (own memory, on "
        "huge pages where the system gives them).",
        choices=("mmap", "populate", "copy"),
    )
    numa: str = setting(
        "off",
        "Where threads run and memory is taken from: off (as the system does), interleave (memory of all nodes in "
        "turn) or bind:N (memory and CPUs of node N). What the page cache already holds stays where it is.",
        check=_numa,
    )
    threads: int = setting(0, "Threads that search; 0: one a core.", check=between(0, 1024))
    reload_every: float = setting(
        0.0,
        "Seconds after which index files are looked at, and replaced while serving where the file is another one; 0: "
        "only on SIGHUP.",
        check=between(0, 1e6),
    )
    max_message_bytes: int = setting(
        MAX_MESSAGE_BYTES, "Largest request and answer, bytes.", check=between(1024, 2**31 - 1)
    )
    max_queries: int = setting(4096, "Most queries of one request.", check=between(1, 2**20))
    max_queue: int = setting(
        16384,
        "Most queries that wait or are worked on, at least --max-queries; callers beyond that are told when to try "
        "again.",
        check=between(1, 2**30),
    )
    max_streams: int = setting(256, "Most SearchStream calls at a time.", check=between(1, 2**20))
    metrics_listen: str = setting(
        "", 'Address for Prometheus metrics over HTTP, "host:port" (0: a free port); default: none.', check=tcp_address
    )
    peer_ca: str = setting("", "PEM file of authorities; when given, --announce calls gateways over TLS.")
    peer_cert: str = setting("", "PEM file of the certificate that this service shows to them.")
    peer_key: str = setting("", "PEM file of its key.")
    announce: tuple[str, ...] = setting((), "Gateway to announce this service to; repeatable.", check=addresses)
    registry: str = setting(
        "", "Redis to announce this service to, redis://HOST:PORT; gateways read it there.", check=redis_url
    )
    advertise: str = setting("", "Address that gateways shall use; default: the first one of --listen.")
    node: str = setting("", "Name of this node; default: the host's name.")
    log_level: str = setting("info", "Log level.", choices=("debug", "info", "warning", "error"))
    log_format: str = setting("text", "Lines for people, or one JSON object a line.", choices=FORMATS)


@dataclass(frozen=True)
class TokenSettings:
    """What the token ids of an index mean."""

    tokenizer: str = setting("", "tokenizer.json that the ids belong to; gives the next two.")
    vocab_size: int = setting(0, "Ids are below this; 0: as --tokenizer says.", check=between(0, 2**31))
    fingerprint: str = setting("", "Fingerprint of the tokenizer's vocabulary.", check=_fingerprint)


@dataclass(frozen=True)
class PruneSettings:
    """Which n-grams an index leaves out."""

    prune: str = setting("", 'Smallest count kept by length, such as "1,1,2"; default: all.', check=_counts)
    totals: str = setting(
        "keep",
        "Counts of what is pruned from: keep (what was seen) or renormalise (the sum of what is kept).",
        choices=("keep", "renormalise"),
    )
    target_size: str = setting(
        "",
        "Prune until the index is at most so large, such as 5G: rare n-grams first, of the greatest length first.",
        check=at_least("1K", empty=True),
    )

    def pruning(self) -> Pruning:
        """These settings as the builder takes them."""
        target = parse_size(self.target_size) if self.target_size else None
        return Pruning(parse_counts(self.prune), self.totals == "renormalise", target)


@dataclass(frozen=True)
class BuildSettings(TokenSettings, PruneSettings):
    """One build."""

    order: int = setting(3, "Longest n-gram counted.", check=between(2, 5))
    memory: str = setting("1G", "Memory to use, such as 512M.", check=at_least("64M"))
    format: str = setting("auto", "What the inputs hold; auto: by name and content.", choices=INPUT_FORMATS)
    field: str = setting("text", "Field of JSON lines, or column of Parquet files, that holds the text.")
    lines: bool = setting(False, "Each line of a plain text file is a document, not the whole file.")
    shard: str = setting("1/1", "Take part i of n of the documents, such as 2/8; merge the parts.", check=_part)
    restart: bool = setting(False, "Throw away what an earlier run of this build has done.")
    quiet: bool = setting(False, "No progress bar.")

    def reading(self) -> Reading:
        """How to read the corpus."""
        part, parts = map(int, self.shard.split("/"))
        return Reading(self.format, self.tokenizer, self.field, self.lines, part - 1, parts)


@dataclass(frozen=True)
class MergeSettings(PruneSettings):
    """One merge."""

    memory: str = setting("1G", "Memory to use, such as 512M.", check=at_least("64M"))
    quiet: bool = setting(False, "No progress bar.")


@dataclass(frozen=True)
class ImportSettings(TokenSettings):
    """One import."""

    memory: str = setting("1G", "Memory to use, such as 512M.", check=at_least("64M"))
    quiet: bool = setting(False, "No progress bar.")
