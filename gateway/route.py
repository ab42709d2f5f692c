"""What a request's metadata says about where it shall run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from dartspec.gateway.router import POLICIES
from dartspec.services.common.errors import InvalidArgument

ROUTING_KEY = "dartspec-routing"
REPLICA_KEY = "dartspec-replica"
MAX_ADDRESS = 256


@dataclass(frozen=True)
class Route:
    """routing: a policy instead of the gateway's. replica: the address of the only verifier wanted. "" is left open."""

    routing: str = ""
    replica: str = ""


ANYWHERE = Route()


def route_from_metadata(metadata: Iterable[tuple[str, str | bytes]]) -> Route:
    """The route that the metadata of a call, or the headers of a request, ask for; keys in lower case.

    Raises InvalidArgument naming the key.
    """
    values = {key: value for key, value in metadata if key in (ROUTING_KEY, REPLICA_KEY)}
    routing, replica = values.get(ROUTING_KEY, ""), values.get(REPLICA_KEY, "")
    if routing and routing not in POLICIES:
        raise InvalidArgument(ROUTING_KEY, f"must be one of {', '.join(POLICIES)}, got {str(routing)[:64]!r}")
    if not isinstance(replica, str) or len(replica) > MAX_ADDRESS:
        raise InvalidArgument(REPLICA_KEY, f"must be an address of at most {MAX_ADDRESS} characters")
    return Route(str(routing), replica)
