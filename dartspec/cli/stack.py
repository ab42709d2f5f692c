"""A local stack for as long as a block of code runs: ngram and verifiers on Unix sockets, a gateway where you want it.

async with running_stack(StackSettings()) as stack:
    ...  # stack.gateway is the address to talk to
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from dartspec.cli.index import build_program, check_index, choose_index
from dartspec.cli.progress import Progress
from dartspec.cli.services import LogLine, Services
from dartspec.cli.stack_programs import gateway_program, ngram_program, threads_of, verifier_program
from dartspec.cli.stack_settings import StackSettings
from dartspec.cli.target_description import TargetDescription, describe_target
from dartspec.services.common.machine import native_dtype, read_machine

SOCKET_PATH_LIMIT = 100  # sun_path holds 108 bytes on Linux, 104 elsewhere


@dataclass(frozen=True)
class Stack:
    """Addresses of a running stack, and what serves there. http: URL of the HTTP API, empty without it."""

    gateway: str
    http: str
    verifiers: tuple[str, ...]
    ngram: str | None
    index: Path | None
    target: TargetDescription
    services: Services


@asynccontextmanager
async def running_stack(
    settings: StackSettings,
    *,
    listen: Sequence[str] = (),
    http_listen: str = "",
    mode: str = "auto",
    on_log: LogLine | None = None,
    progress: Progress | None = None,
) -> AsyncIterator[Stack]:
    """Start a stack, wait until every service is ready, and stop it when the block ends, however it ends.

    The gateway listens on ``listen``, by default on a Unix socket in the stack's private directory, and has its HTTP
    API on ``http_listen`` if that is not empty. Raises what the first service that failed said.
    """
    with tempfile.TemporaryDirectory(prefix="dartspec-", dir=_socket_parent()) as directory:
        sockets = Path(directory)
        progress = progress or Progress()
        services = Services(progress, on_log)
        try:
            async with progress:
                try:
                    gateway = (listen or [_address(sockets, "gateway")], http_listen, mode)
                    stack = await _start(settings, services, sockets, *gateway)
                except ExceptionGroup as group:
                    raise _first(group) from None
            yield stack
        finally:
            await services.stop()


async def _start(
    settings: StackSettings, services: Services, sockets: Path, listen: Sequence[str], http_listen: str, mode: str
) -> Stack:
    machine = read_machine()
    dtype = settings.dtype if settings.dtype != "auto" else native_dtype(machine, settings.device)[0]
    threads = threads_of(settings, machine.cores)
    programs = [
        verifier_program(settings, replica, _address(sockets, f"verifier-{replica}"), dtype=dtype, threads=threads)
        for replica in range(settings.replicas)
    ]
    async with asyncio.TaskGroup() as group:
        verifiers = [group.create_task(services.start(program)) for program in programs]
        described = group.create_task(_described(verifiers[0]))
        ngram = group.create_task(_start_ngram(settings, services, sockets, described))
    addresses = [verifier.result()[0] for verifier in verifiers]
    ngram_address, index = ngram.result()
    program = gateway_program(settings, listen, addresses, ngram_address, mode, http_listen)
    gateway = await services.start(program)
    http = next((address for address in gateway if address.startswith("http://")), "")
    return Stack(gateway[0], http, tuple(addresses), ngram_address, index, described.result(), services)


async def _described(verifier: asyncio.Task[list[str]]) -> TargetDescription:
    return await describe_target((await verifier)[0])


async def _start_ngram(
    settings: StackSettings, services: Services, sockets: Path, described: asyncio.Task[TargetDescription]
) -> tuple[str | None, Path | None]:
    choice = choose_index(settings.index, settings.model)
    if choice is None:
        return None, None
    if choice.missing:
        choice.path.parent.mkdir(parents=True, exist_ok=True)
        # Only the verifier knows the tokenizer's fingerprint, so the first start counts after the model is loaded.
        await services.complete(build_program(choice, await described), f"counting {choice.corpus}")
    address = (await services.start(ngram_program(settings, str(choice.path), _address(sockets, "ngram"))))[0]
    await check_index(address, await described)
    return address, choice.path


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The failure that made the others be cancelled."""
    first = group.exceptions[0]
    return _first(first) if isinstance(first, BaseExceptionGroup) else first


def _address(sockets: Path, name: str) -> str:
    return f"unix:{sockets / name}.sock"


def _socket_parent() -> str | None:
    """Where the sockets' directory goes: the usual place for temporary files, or /tmp when its path is too long."""
    usual = tempfile.gettempdir()
    return None if len(usual) + len("/dartspec-XXXXXXXX/verifier-99.sock") <= SOCKET_PATH_LIMIT else "/tmp"
