"""The verifiers that this gateway can use: one link each, and the choice among them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dartspec.gateway.affinity import PrefixMemory
from dartspec.gateway.limits import Limits
from dartspec.gateway.link import VerifierLink
from dartspec.gateway.model import Model, ModelSource
from dartspec.gateway.registry import Record, Registry, ServiceKind
from dartspec.gateway.route import ANYWHERE, REPLICA_KEY, Route
from dartspec.gateway.router import Candidate, Wanted, choose
from dartspec.gateway.stats import Control
from dartspec.gateway.steering import Steering
from dartspec.services.common.errors import FailedPrecondition, InvalidArgument, NotFound, Unavailable
from dartspec.services.common.tls import ClientTls

if TYPE_CHECKING:
    from dartspec.gateway.relay import Relay

RECONCILE_SECONDS = 1.0
RETRY_AFTER_MS = 1000


FIRST_TYPICAL_TOKENS = 128.0
TYPICAL_SHARE = 0.02  # of one more answer in their mean length


@dataclass(frozen=True)
class Asking:
    """What a request asks of a verifier.

    prompt_tokens, max_tokens: how many. blocks: hashes of the prompt's blocks (`affinity.block_hashes`).
    """

    needs_head: bool = False
    prompt_tokens: int = 0
    max_tokens: int = 1
    blocks: tuple[int, ...] = ()
    route: Route = ANYWHERE


class Fleet:
    """Follows the registry: a link for each verifier that it names; each link lives and fails by itself."""

    def __init__(
        self,
        registry: Registry,
        *,
        routing: str,
        limits: Limits,
        rng: random.Random,
        learned: bool = False,
        tls: ClientTls | None = None,
        relay: Relay | None = None,
    ) -> None:
        """``learned``: a policy learns which requests of mode auto do better without drafts.

        ``tls``, ``relay``: of the ways to verifiers.
        """
        self.routing = routing
        self._registry = registry
        self._limits = limits
        self._learned = learned
        self._rng = rng
        self._tls = tls
        self._relay = relay
        self._turn = 0
        self._prefixes = PrefixMemory()
        self._typical_tokens = FIRST_TYPICAL_TOKENS
        self._held: set[str] = set()
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
                # Not wait_for: before Python 3.12 it swallows a cancellation that comes with the result.
                with suppress(TimeoutError):
                    async with asyncio.timeout(RECONCILE_SECONDS):
                        await self._changed.wait()
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

    @property
    def links(self) -> list[VerifierLink]:
        """All of them, by address."""
        return [self._links[address] for address in sorted(self._links)]

    @property
    def models(self) -> list[str]:
        """Names of the models that a verifier serves, or served when it was last up."""
        return sorted({link.model.name for link in self._links.values() if link.model})

    def control(self) -> Control:
        """What the policies do, and which heads drift; may be called from any thread."""
        links = list(self._links.values())
        return Control(sum(link.steering.plain_classes() for link in links), sum(link.drift.drifting for link in links))

    def records(self) -> dict[str, Record]:
        """What the registry says of verifiers, by address."""
        return {record.address: record for record in self._registry.records(ServiceKind.VERIFIER)}

    def hold(self, address: str, *, held: bool) -> None:
        """Give a verifier nothing new, or use it again. Raises NotFound for an unknown address."""
        if address not in self._links and address not in self._held:
            raise NotFound(f"address: no verifier {address!r} is known here", field="address")
        (self._held.add if held else self._held.discard)(address)
        if address in self._links:
            self._links[address].held = held

    def able(self, model: Model, asking: Asking) -> list[VerifierLink]:
        """Verifiers that could take the request if they are not full.

        Raises Unavailable when there is none now; NotFound for a replica that nobody knows; FailedPrecondition for one
        that does not serve the model, and when none of those up has a draft head that is needed.
        """
        links = self.links
        if asking.route.replica:
            links = [link for link in links if link.address == asking.route.replica]
            if not links:
                raise NotFound(f"{REPLICA_KEY}: no verifier {asking.route.replica!r} is known here", field=REPLICA_KEY)
            if links[0].up and links[0].model is not None and links[0].model.key != model.key:
                raise FailedPrecondition(
                    f"{REPLICA_KEY}: {asking.route.replica} does not serve this {model.name}", field=REPLICA_KEY
                )
        serving = [
            link
            for link in links
            if link.up and not link.draining and link.model is not None and link.model.key == model.key
        ]
        able = [link for link in serving if link.model is not None and (link.model.has_head or not asking.needs_head)]
        if serving and not able:
            raise FailedPrecondition(
                f"mode: no verifier of {model.name} has a draft head; use MODE_AUTO or MODE_PLAIN", field="mode"
            )
        # Whoever names a replica wants to see what it does, broken or not.
        able = able if asking.route.replica else [link for link in able if link.allowed()]
        if not able:
            raise Unavailable(f"no verifier of {model.name} is available", retry_after_ms=RETRY_AFTER_MS)
        return able

    def choose(self, model: Model, asking: Asking, avoid: Collection[str] = ()) -> VerifierLink:
        """The verifier for the next session of a request to this model. Raises as `able` does."""
        links = [link for link in self.able(model, asking) if link.address not in avoid]
        if not links:
            raise Unavailable(f"no verifier of {model.name} is available", retry_after_ms=RETRY_AFTER_MS)
        known = self._prefixes.known_tokens(asking.blocks)
        candidates = [Candidate(link, link.load(), known.get(link.address, 0)) for link in links]
        wanted = Wanted(asking.prompt_tokens, min(asking.max_tokens, self._typical_tokens), self._typical_tokens)
        chosen = choose(asking.route.routing or self.routing, candidates, wanted, self._rng, self._turn)
        self._turn += 1
        self._prefixes.remember(asking.blocks, chosen.address)
        return chosen

    def _answered(self, tokens: int) -> None:
        self._typical_tokens += (tokens - self._typical_tokens) * TYPICAL_SHARE

    def _reconcile(self) -> None:
        records = self.records()
        for address, record in records.items():
            if address not in self._links:
                steering = Steering(self._learned)
                link = VerifierLink(
                    address, self._models, self._limits, self._answered, steering, self._tls, self._relay
                )
                link.held = address in self._held
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
