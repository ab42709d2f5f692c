"""What a request's metadata says about where it shall run, and what it is."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from dartspec.gateway.router import POLICIES
from dartspec.services.common.errors import InvalidArgument

ROUTING_KEY = "dartspec-routing"
REPLICA_KEY = "dartspec-replica"
TASK_KEY = "dartspec-task"
MAX_ADDRESS = 256
_TASK = re.compile(r"[A-Za-z0-9._-]{1,32}")


@dataclass(frozen=True)
class Route:
    """routing: a policy instead of the gateway's. replica: the address of the only verifier wanted. "" is left open.

    task: the client's name for the kind of request, by which it is learned whether speculation pays (`classes`).
    """

    routing: str = ""
    replica: str = ""
    task: str = ""


ANYWHERE = Route()


def route_from_metadata(metadata: Iterable[tuple[str, str | bytes]]) -> Route:
    """The route that the metadata of a call, or the headers of a request, ask for; keys in lower case.

    Raises InvalidArgument naming the key.
    """
    values = {key: value for key, value in metadata if key in (ROUTING_KEY, REPLICA_KEY, TASK_KEY)}
    routing, replica = values.get(ROUTING_KEY, ""), values.get(REPLICA_KEY, "")
    if routing and routing not in POLICIES:
        raise InvalidArgument(ROUTING_KEY, f"must be one of {', '.join(POLICIES)}, got {str(routing)[:64]!r}")
    if not isinstance(replica, str) or len(replica) > MAX_ADDRESS:
        raise InvalidArgument(REPLICA_KEY, f"must be an address of at most {MAX_ADDRESS} characters")
    task = values.get(TASK_KEY, "")
    if task and not (isinstance(task, str) and _TASK.fullmatch(task)):
        raise InvalidArgument(TASK_KEY, f"must be 1 to 32 of letters, digits, '.', '_' and '-', got {str(task)[:64]!r}")
    return Route(str(routing), replica, str(task))
