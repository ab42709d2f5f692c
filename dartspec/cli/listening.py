"""Whether an address can be listened on, known before a model is loaded for it."""

from __future__ import annotations

import socket

from dartspec.services.common.errors import FailedPrecondition, InvalidArgument


def check_free(address: str, flag: str = "--listen") -> None:
    """Raise InvalidArgument for what is not an address, FailedPrecondition for a port that cannot be listened on now.

    Unix sockets are left to the service, which replaces a stale one.
    """
    if address.startswith("unix:"):
        return
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdigit() or int(port) > 65535:
        raise InvalidArgument(flag, f"must be host:port or unix:/path, got {address!r}")
    host = host.strip("[]")
    try:
        family, kind, protocol, _, target = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections that linger do not count
            probe.bind(target)
    except OSError as error:
        raise FailedPrecondition(
            f"{flag}: cannot listen on {address}: {error.strerror or error}; "
            "choose another port (0 picks a free one) or stop what uses it",
            field=flag,
        ) from error
