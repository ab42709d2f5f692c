"""The verifiers that this gateway can use: one link each, and the choice among them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Collection

from dartspec.gateway.link import VerifierLink
from dartspec.gateway.model import Model, ModelSource
from dartspec.gateway.registry import Registry, ServiceKind
from dartspec.gateway.router import choose
from dartspec.services.common.errors import FailedPrecondition, InvalidArgument, NotFound, Unavailable

RECONCILE_SECONDS = 1.0
RETRY_AFTER_MS = 1000


class Fleet:
    """Follows the registry: a link for each verifier that it names; each link lives and fails by itself."""

    def __init__(self, registry: Registry, *, stall_seconds: float, rng: random.Random) -> None:
        self._registry = registry
        self._stall_seconds = stall_seconds
        self._rng = rng
        self._models = ModelSource()
        self._links: dict[str, VerifierLink] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._changed = asyncio.Event()

    async def run(self) -> None:
        """Follow the registry until cancelled."""
        try:
            while True:
                self._changed.clear()
                self._reconcile()
                try:
                    await asyncio.wait_for(self._changed.wait(), RECONCILE_SECONDS)
                except TimeoutError:
                    continue
        finally:
            for task in self._tasks.values():
                task.cancel()
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    def registry_changed(self) -> None:
        """A record came or changed; look now rather than at the next turn."""
        self._changed.set()

    async def first_attempts(self, seconds: float) -> None:
        """Wait until every known verifier has been tried once, at most so long."""
        self._reconcile()
        waits = [asyncio.create_task(link.tried.wait()) for link in self._links.values()]
        if waits:
            _, late = await asyncio.wait(waits, timeout=seconds)
            for wait in late:
                wait.cancel()

    @property
    def addresses(self) -> list[str]:
        """Verifiers that there is a link to, connected or not."""
        return list(self._links)

    def model(self, name: str) -> Model:
        """The model of that name; of any name when only one is served.

        Raises NotFound for a name that nobody serves, InvalidArgument for no name among several models, Unavailable
        when the verifiers that would serve it are down.
        """
        known = [link for link in self._links.values() if link.model is not None]
        names = sorted({link.model.name for link in known if link.model})
        if not names:
            raise Unavailable("no verifier has been reached yet", retry_after_ms=RETRY_AFTER_MS)
        if name and name not in names:
            raise NotFound(f"model: {name!r} is not served here; served: {', '.join(names)}", field="model")
        if not name and len(names) > 1:
            raise InvalidArgument("model", f"several models are served, choose one of: {', '.join(names)}")
        # A link that is up goes first, so that a new version takes over from one that is gone.
        for link in sorted(known, key=lambda link: not link.up):
            if link.model is not None and link.model.name == (name or names[0]):
                return link.model
        raise AssertionError("a name without a model")

    def choose(self, model: Model, *, needs_head: bool, avoid: Collection[str] = ()) -> VerifierLink:
        """The verifier for the next session of a request to this model.

        Raises Unavailable when there is none, FailedPrecondition when none of those up has a draft head.
        """
        serving = [
            link
            for link in self._links.values()
            if link.up and not link.draining and link.model is not None and link.model.key == model.key
        ]
        able = [link for link in serving if link.model is not None and (link.model.has_head or not needs_head)]
        if serving and not able:
            raise FailedPrecondition(
                f"mode: no verifier of {model.name} has a draft head; use MODE_AUTO or MODE_PLAIN", field="mode"
            )
        candidates = [(link, link.load()) for link in able if link.address not in avoid]
        if not candidates:
            raise Unavailable(f"no verifier of {model.name} is available", retry_after_ms=RETRY_AFTER_MS)
        return choose(candidates, self._rng)

    def _reconcile(self) -> None:
        records = {record.address: record for record in self._registry.records(ServiceKind.VERIFIER)}
        for address, record in records.items():
            if address not in self._links:
                link = VerifierLink(address, self._models, stall_seconds=self._stall_seconds)
                self._links[address] = link
                self._tasks[address] = asyncio.create_task(link.run())
            self._links[address].retiring = record.draining
            if record.load is not None:
                self._links[address].announced(record.load)
        for address in set(self._links) - set(records):
            link = self._links[address]
            link.retiring = True  # finishes what it has
            if not link.up or not link.sessions:
                self._tasks.pop(address).cancel()
                del self._links[address]
