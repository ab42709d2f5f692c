"""Services behind a DNS name: every address that the name has is one of them. For headless services of Kubernetes.

--verifier dns:///verifier.dartspec.svc.cluster.local:7010
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from dartspec.gateway.registry import Record, Registry, ServiceKind
from dartspec.services.common.config import address_problem

log = logging.getLogger(__name__)

SCHEME = "dns:///"
POLL_SECONDS = 5.0
LOOKUP_SECONDS = 5.0

# Host in, addresses out; an empty list when the name exists no more. Raises OSError when nobody can tell.
Resolve = Callable[[str], Awaitable[list[str]]]


def service_addresses(values: Sequence[str]) -> str | None:
    """A check that every value is an address, or one behind "dns:///"."""
    for value in values:
        rest = value.removeprefix(SCHEME)
        problem = address_problem(rest)
        if problem is None and value.startswith(SCHEME) and (rest.startswith("unix:") or rest.endswith(":0")):
            problem = f'after "{SCHEME}" comes a name and a port, got {value!r}'
        if problem:
            return problem
    return None


def is_name(value: str) -> bool:
    """Whether a value of --verifier or --ngram is a name to look up."""
    return value.startswith(SCHEME)


@dataclass(frozen=True)
class ServiceName:
    """A name to look up, and what is behind it."""

    kind: ServiceKind
    host: str
    port: int

    @classmethod
    def parse(cls, kind: ServiceKind, value: str) -> ServiceName:
        """From "dns:///host:port"."""
        host, _, port = value.removeprefix(SCHEME).rpartition(":")
        return cls(kind, host, int(port))

    def record(self, address: str) -> Record:
        """Of the service at one of the name's addresses."""
        host = f"[{address}]" if ":" in address else address
        return Record(self.kind, f"{host}:{self.port}")


class DnsFeed:
    """Looks names up again and again, and renews a record in the registry for each address found.

    A record that is not renewed expires as an announced one does. While a name cannot be looked up nobody knows better,
    so what was found last is renewed. ``changed`` is called when a name has addresses that it did not have before.
    """

    def __init__(
        self,
        names: Sequence[ServiceName],
        registry: Registry,
        changed: Callable[[], None],
        resolve: Resolve | None = None,
        poll_seconds: float = POLL_SECONDS,
    ) -> None:
        self._found: dict[ServiceName, list[str]] = {name: [] for name in names}
        self._registry = registry
        self._changed = changed
        self._resolve = resolve or system_addresses
        self._poll_seconds = poll_seconds
        self._failing: set[ServiceName] = set()

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(self._poll_seconds)

    async def look(self) -> None:
        """Look every name up once."""
        await asyncio.gather(*map(self._look_up, self._found))

    async def _look_up(self, name: ServiceName) -> None:
        before = self._found[name]
        try:
            found = sorted(set(await asyncio.wait_for(self._resolve(name.host), LOOKUP_SECONDS)))
        except (OSError, TimeoutError) as error:
            if name not in self._failing:
                log.warning("%s cannot be looked up, what it was last stands: %s", name.host, error or "no answer")
            self._failing.add(name)
            found = before
        else:
            self._failing.discard(name)
        self._found[name] = found
        for address in found:
            self._registry.announce(name.record(address), self._poll_seconds)
        if set(found) - set(before):
            log.info("%s: %s", name.host, ", ".join(found))
            self._changed()


async def system_addresses(host: str) -> list[str]:
    """What the system's resolver says."""
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        # A headless service without a ready pod has no name; anything else is the resolver's trouble.
        if error.errno in (socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME)):
            return []
        raise
    return [str(address[0]) for *_, address in found]
