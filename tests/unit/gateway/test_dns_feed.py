"""Verifiers behind a DNS name, with a resolver that answers as told."""

from __future__ import annotations

import socket

import pytest

from dartspec.gateway.dns_feed import DnsFeed, ServiceName, service_addresses, system_addresses
from dartspec.gateway.registry import Registry, ServiceKind

POLL = 5.0


class Resolver:
    """Answers with ``addresses``, or raises ``error``."""

    def __init__(self, *addresses: str) -> None:
        self.addresses = list(addresses)
        self.error: OSError | None = None

    async def __call__(self, host: str) -> list[str]:
        assert host == "verifier.dartspec"
        if self.error:
            raise self.error
        return self.addresses


class Found:
    """A feed, its registry, and a clock that stands still until moved."""

    def __init__(self, resolver: Resolver) -> None:
        self.now = 100.0
        self.changes = 0
        self.registry = Registry((), interval=1.0, clock=lambda: self.now)
        name = ServiceName.parse(ServiceKind.VERIFIER, "dns:///verifier.dartspec:7010")
        self.feed = DnsFeed([name], self.registry, self.changed, resolver, POLL)

    def changed(self) -> None:
        self.changes += 1

    async def looks(self, turns: int = 1) -> list[str]:
        for _ in range(turns):
            self.now += POLL
            await self.feed.look()
        return sorted(record.address for record in self.registry.records(ServiceKind.VERIFIER))


async def test_every_address_is_a_verifier():
    found = Found(Resolver("10.0.0.2", "10.0.0.1", "10.0.0.2", "fd00::7"))
    assert await found.looks() == ["10.0.0.1:7010", "10.0.0.2:7010", "[fd00::7]:7010"]
    assert found.registry.records(ServiceKind.NGRAM) == []
    await found.looks(5)
    assert found.changes == 1


async def test_pods_come_and_go():
    resolver = Resolver("10.0.0.1")
    found = Found(resolver)
    await found.looks()
    resolver.addresses = ["10.0.0.2"]
    # The one that is gone stays until it has missed three beats.
    assert await found.looks(2) == ["10.0.0.1:7010", "10.0.0.2:7010"]
    assert await found.looks() == ["10.0.0.2:7010"]
    assert found.changes == 2
    resolver.addresses = []
    assert await found.looks(3) == []


async def test_a_resolver_that_fails_takes_nobody_away():
    resolver = Resolver("10.0.0.1")
    found = Found(resolver)
    await found.looks()
    resolver.error = socket.gaierror(socket.EAI_AGAIN, "try again")
    assert await found.looks(100) == ["10.0.0.1:7010"]
    resolver.error, resolver.addresses = None, ["10.0.0.3"]
    assert await found.looks(3) == ["10.0.0.3:7010"]


async def test_a_name_that_is_gone_is_no_failure(monkeypatch):
    assert "127.0.0.1" in await system_addresses("127.0.0.1")

    def say(number):
        def getaddrinfo(*args, **kwargs):
            raise socket.gaierror(number, "no")

        return getaddrinfo

    monkeypatch.setattr(socket, "getaddrinfo", say(socket.EAI_NONAME))
    assert await system_addresses("gone") == []
    monkeypatch.setattr(socket, "getaddrinfo", say(socket.EAI_AGAIN))
    with pytest.raises(OSError, match="no"):
        await system_addresses("gone")


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("dns:///verifier:7010", None),
        ("10.0.0.1:7010", None),
        ("unix:/run/a.sock", None),
        ("dns:///verifier", "host:port"),
        ("dns:///verifier:0", "a name and a port"),
        ("dns:///unix:/run/a.sock", "a name and a port"),
        ("dns://verifier:7010", "host:port"),
    ],
)
def test_what_may_be_named(value, problem):
    found = service_addresses([value])
    assert found is None if problem is None else problem in (found or "")
