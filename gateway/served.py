"""What a fleet serves now."""

from __future__ import annotations

from dataclasses import dataclass

from dartspec.gateway.breaker import BreakerState
from dartspec.gateway.fleet import Fleet
from dartspec.gateway.link import VerifierLink
from dartspec.gateway.model import Model


@dataclass(frozen=True)
class ServedModel:
    """A model that can be asked for.

    has_head: one of its replicas drafts. ready: replicas that take new answers, of ``replicas`` in all.
    """

    model: Model
    has_head: bool
    ready: int
    replicas: int


def models(fleet: Fleet) -> list[ServedModel]:
    """One of each name, by name; those whose verifiers are down for now included, as `Fleet.model` finds them."""
    return [_served(fleet, fleet.model(name)) for name in fleet.models]


def _served(fleet: Fleet, model: Model) -> ServedModel:
    # Those of the same name that serve something else (other weights, say) are not counted: none goes on for another.
    links = [link for link in fleet.links if link.model is not None and link.model.key == model.key]
    has_head = any(link.model is not None and link.model.has_head for link in links)
    return ServedModel(model, has_head, sum(takes_answers(link) for link in links), len(links))


def takes_answers(link: VerifierLink) -> bool:
    """Whether a verifier is given new answers without reserve."""
    return link.up and not link.draining and link.breaker_state() is BreakerState.CLOSED


def ready(fleet: Fleet) -> bool:
    """Whether a verifier is connected and takes sessions."""
    return any(link.up and not link.draining for link in fleet.links)
