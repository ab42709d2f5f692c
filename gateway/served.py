"""What a fleet serves now."""

from __future__ import annotations

from dartspec.gateway.fleet import Fleet
from dartspec.gateway.model import Model


def models(fleet: Fleet) -> list[Model]:
    """One of each name, by name; those whose verifiers are down for now included, as `Fleet.model` finds them."""
    return [fleet.model(name) for name in fleet.models]


def ready(fleet: Fleet) -> bool:
    """Whether a verifier is connected and takes sessions."""
    return any(link.up and not link.draining for link in fleet.links)
