"""Real processes for `bench.failover`: verifiers, each behind a relay, gateways and an ngram service."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.failover_client import until_replicas
from bench.forked import Forked
from bench.relay import Relay, Trap
from dartspec.gateway.config import Settings
from dartspec.services.ngram.config import ServeSettings
from dartspec.services.verifier.config import VerifierSettings

# Limits of the gateway on a verifier that is stopped, seconds.
FIRST_TOKEN_SECONDS = 5.0
BETWEEN_TOKENS_SECONDS = 5.0


class Replica:
    """A verifier process behind a relay, whose address stays when the process is another one."""

    def __init__(self, settings: VerifierSettings, sockets: Path, name: str) -> None:
        self.relay = Relay()
        self._settings = settings
        self._addresses: Iterator[str] = (f"unix:{sockets}/{name}.{number}.sock" for number in itertools.count())
        self._process: Forked | None = None

    async def start(self, address: str) -> None:
        """Listen on ``address``, the process behind it running."""
        await self.restart()
        await self.relay.start(address)

    async def restart(self) -> None:
        """A new process instead of one that has ended."""
        settings = dataclasses.replace(self._settings, listen=(next(self._addresses),))
        self._process = await Forked.started(settings)
        self.relay.backend = self._process.address

    async def kill(self) -> None:
        """kill -9."""
        assert self._process is not None
        await self._process.kill()

    def signal(self, signum: signal.Signals) -> None:
        """SIGSTOP, SIGCONT and the like."""
        assert self._process is not None
        self._process.signal(signum)

    async def terminate(self) -> int:
        """SIGTERM: it drains and ends. Returns the exit code."""
        assert self._process is not None
        return await self._process.stop()

    async def stop(self) -> None:
        """The end of both."""
        await self.relay.stop()
        await self.kill()


@dataclass
class Stack:
    """What runs. settings: of gateways, but for where they listen."""

    replicas: list[Replica]
    gateways: list[Forked]
    ngram: Forked | None
    settings: Settings
    ngram_settings: ServeSettings | None

    @property
    def gateway(self) -> str:
        """Address of the first gateway."""
        return self.gateways[0].address

    async def whole(self) -> None:
        """Wait until every gateway uses every verifier."""
        for gateway in self.gateways:
            await until_replicas(gateway.address, len(self.replicas))

    async def restart_gateway(self, which: int) -> None:
        """A new process at the address of one that was killed."""
        listen = (self.gateways[which].address,)
        self.gateways[which] = await Forked.started(dataclasses.replace(self.settings, listen=listen))

    async def restart_ngram(self) -> None:
        """A new process at the address of one that was killed."""
        assert self.ngram_settings is not None
        self.ngram = await Forked.started(self.ngram_settings)

    def arm(self, trap: Trap) -> None:
        """Whichever verifier gets there first, meets the trap."""
        for replica in self.replicas:
            replica.relay.trap = trap

    def behind(self, relay: Relay) -> Replica:
        """The verifier behind a relay."""
        return next(replica for replica in self.replicas if replica.relay is relay)


@asynccontextmanager
async def failover_stack(
    verifier: VerifierSettings, index: str, sockets: Path, *, verifiers: int = 2, gateways: int = 1
) -> AsyncIterator[Stack]:
    """Everything ready; killed on leaving. ``index``: of the ngram service, none for an empty one."""
    replicas = [Replica(verifier, sockets, f"v{number}") for number in range(verifiers)]
    addresses = [f"unix:{sockets}/relay{number}.sock" for number in range(verifiers)]
    ngram = ServeSettings(index=(index,), listen=(f"unix:{sockets}/ngram.sock",)) if index else None
    settings = Settings(
        verifier=tuple(addresses),
        ngram=ngram.listen if ngram is not None else (),
        first_token_seconds=FIRST_TOKEN_SECONDS,
        between_tokens_seconds=BETWEEN_TOKENS_SECONDS,
        log_level="warning",
    )
    stack = Stack(replicas, [], None, settings, ngram)
    try:
        async with asyncio.TaskGroup() as group:
            for replica, address in zip(replicas, addresses, strict=True):
                group.create_task(replica.start(address))
            if ngram is not None:
                group.create_task(stack.restart_ngram())
        for number in range(gateways):
            listen = (f"unix:{sockets}/gateway{number}.sock",)
            stack.gateways.append(await Forked.started(dataclasses.replace(settings, listen=listen)))
        await stack.whole()
        yield stack
    finally:
        processes = [*stack.gateways, *([stack.ngram] if stack.ngram is not None else [])]
        await asyncio.gather(*(process.kill() for process in processes), *(replica.stop() for replica in replicas))
