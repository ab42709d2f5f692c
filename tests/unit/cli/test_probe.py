"""`dartspec health`, as supervisors of containers run it."""

from __future__ import annotations

from dartspec.services.common.server import Server
from tests.unit.cli.command import dartspec


async def test_it_says_what_the_service_says() -> None:
    server = Server(["a.Service"])
    (address,) = await server.start(["127.0.0.1:0"])
    assert (await dartspec("health", address))[:2] == (1, "NOT_SERVING\n")
    await server.ready()
    assert (await dartspec("health", address))[:2] == (0, "SERVING\n")
    unknown = await dartspec("health", address, "--service", "b.Service")
    assert unknown.code == 1
    assert "has no service 'b.Service'" in unknown.err
    await server.stop(0)
    gone = await dartspec("health", address)
    assert gone.code == 1
    assert address in gone.err


async def test_a_time_that_is_none_is_named() -> None:
    for seconds in ("nan", "inf", "0"):
        refused = await dartspec("health", "127.0.0.1:1", "--seconds", seconds)
        assert refused.code == 2
        assert seconds in refused.err
