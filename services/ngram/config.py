"""Settings of `dartspec ngram`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from dartspec.services.common.config import addresses, between, setting

_FINGERPRINT = re.compile(r"[0-9a-f]{8,64}")


def _fingerprint(value: str) -> str | None:
    if not value or _FINGERPRINT.fullmatch(value):
        return None
    return f"must be 8 to 64 lower-case hexadecimal digits, got {value!r}"


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
        "Where an index lives: mmap (read on first use), populate (mapped, read before ready) or copy (own memory).",
        choices=("mmap", "populate", "copy"),
    )
    threads: int = setting(0, "Threads that search; 0: one a core.", check=between(0, 1024))
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
