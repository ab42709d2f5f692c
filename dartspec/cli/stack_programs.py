"""The command line of each service of a local stack. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from dartspec.cli.process import Program
from dartspec.cli.stack_settings import StackSettings


def verifier_program(
    settings: StackSettings, replica: int, address: str, *, dtype: str, threads: int | None
) -> Program:
    """The i-th verifier, listening on ``address``; ``settings.dtype`` and ``settings.threads`` are resolved already."""
    return Program(
        "verifier" if settings.replicas == 1 else f"verifier-{replica}",
        (
            *("verifier", "serve", "--listen", address, "--log-level", settings.log_level),
            *("--model", settings.model, "--dtype", dtype, "--device", settings.device_of(replica)),
            *_option("--revision", settings.revision),
            *_option("--head", settings.head_source),
            *_option("--threads", threads),
            *_option("--budget", settings.budget),
            *_option("--invariant", settings.invariant),
        ),
    )


def ngram_program(settings: StackSettings, index: str, address: str) -> Program:
    """The ngram service over one index file."""
    return Program(
        "ngram", ("ngram", "serve", "--listen", address, "--log-level", settings.log_level, "--index", index)
    )


def gateway_program(
    settings: StackSettings,
    listen: Sequence[str],
    verifiers: Sequence[str],
    ngram: str | None,
    mode: str,
    http_listen: str = "",
) -> Program:
    """The gateway over services at known addresses; without an HTTP API if ``http_listen`` is empty."""
    return Program(
        "gateway",
        (
            *("gateway", "serve", "--log-level", settings.log_level, "--mode", mode),
            *_repeated("--listen", listen),
            *_option("--http-listen", http_listen or None),
            *_repeated("--verifier", verifiers),
            *_option("--ngram", ngram),
        ),
    )


def threads_of(settings: StackSettings, cores: int) -> int | None:
    """Threads of each verifier: what was asked for, else an equal share of the cores when several share them."""
    if settings.threads is not None or settings.replicas == 1 or settings.device.startswith("cuda"):
        return settings.threads
    return max(1, cores // settings.replicas)


def _option(flag: str, value: object | None) -> tuple[str, ...]:
    return () if value is None else (flag, str(value))


def _repeated(flag: str, values: Sequence[str]) -> tuple[str, ...]:
    return tuple(part for value in values for part in (flag, value))
