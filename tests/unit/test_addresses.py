"""Addresses are checked before anything listens, and only dead sockets are removed."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from dartspec.services.common.config import address_problem
from dartspec.services.common.errors import FailedPrecondition
from dartspec.services.common.server import Server, remove_stale_socket


@pytest.mark.parametrize("address", ["127.0.0.1:0", "[::1]:7000", "node-3:65535", "unix:/tmp/a.sock", "unix:a.sock"])
def test_good_addresses(address: str) -> None:
    assert address_problem(address) is None


@pytest.mark.parametrize(
    "address", ["foo", "127.0.0.1", ":7000", "http://127.0.0.1:7000", "h:99999", "h:x", "unix:", ""]
)
def test_bad_addresses(address: str) -> None:
    assert address_problem(address)


def test_a_file_that_is_no_socket_stays(tmp_path: Path) -> None:
    notes = tmp_path / "notes.txt"
    notes.write_text("precious")
    with pytest.raises(FailedPrecondition, match="not a socket"):
        remove_stale_socket(notes)
    assert notes.read_text() == "precious"


def test_a_dead_socket_goes_and_a_live_one_stays(tmp_path: Path) -> None:
    path = tmp_path / "s.sock"
    remove_stale_socket(path)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        with pytest.raises(FailedPrecondition, match="answers there"):
            remove_stale_socket(path)
        assert path.exists()
    remove_stale_socket(path)
    assert not path.exists()


@pytest.mark.parametrize("address", ["127.0.0.1:99999", "unix:/nowhere/x.sock"])
async def test_a_server_refuses_what_it_cannot_bind(address: str) -> None:
    server = Server([])
    with pytest.raises(FailedPrecondition, match="cannot listen"):
        await server.start([address])
    await server.stop(0)
