"""Settings of `dartspec ngram`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from dartspec.services.common.config import address_problem, addresses, between, setting

_FINGERPRINT = re.compile(r"[0-9a-f]{8,64}")
_NUMA = re.compile(r"off|interleave|bind:[0-9]{1,4}")
MAX_MESSAGE_BYTES = 64 * 1024 * 1024  # as the other services take


def _fingerprint(value: str) -> str | None:
    if not value or _FINGERPRINT.fullmatch(value):
        return None
    return f"must be 8 to 64 lower-case hexadecimal digits, got {value!r}"


def _tcp_address(value: str) -> str | None:
    if not value:
        return None
    if value.startswith("unix:"):
        return f'must be "host:port", got {value!r}'
    return address_problem(value)


def _numa(value: str) -> str | None:
    if _NUMA.fullmatch(value):
        return None
    return f"must be off, interleave or bind:N with the number of a node, got {value!r}"


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
        "Where threads run and memory is taken from: off (as the system does), interleave (memory of all nodes in turn) "
        "or bind:N (memory and CPUs of node N). What the page cache already holds stays where it is.",
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
        "", 'Address for Prometheus metrics over HTTP, "host:port" (0: a free port); default: none.', check=_tcp_address
    )
    announce: tuple[str, ...] = setting((), "Gateway to announce this service to; repeatable.", check=addresses)
    advertise: str = setting("", "Address that gateways shall use; default: the first one of --listen.")
    node: str = setting("", "Name of this node; default: the host's name.")
    log_level: str = setting("info", "Log level.", choices=("debug", "info", "warning", "error"))


@dataclass(frozen=True)
class TokenSettings:
    """What the token ids of an index mean."""

    tokenizer: str = setting("", "tokenizer.json that the ids belong to; gives the next two.")
    vocab_size: int = setting(0, "Ids are below this; 0: as --tokenizer says.", check=between(0, 2**31))
    fingerprint: str = setting("", "Fingerprint of the tokenizer's vocabulary.", check=_fingerprint)


@dataclass(frozen=True)
class BuildSettings(TokenSettings):
    """One build."""

    order: int = setting(3, "Longest n-gram counted.", check=between(2, 5))
    quiet: bool = setting(False, "No progress bar.")


@dataclass(frozen=True)
class ImportSettings(TokenSettings):
    """One import."""

    quiet: bool = setting(False, "No progress bar.")
