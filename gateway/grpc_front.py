"""The gateway's gRPC services: each call converts, calls, converts."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import aclosing
from dataclasses import replace

import grpc

from dartspec.gateway.api_keys import ApiKeys
from dartspec.gateway.convert import record_from_proto, request_from_proto, response_to_proto
from dartspec.gateway.fleet import Fleet
from dartspec.gateway.grpc_keys import authorization, entry
from dartspec.gateway.registry import Registry
from dartspec.gateway.route import route_from_metadata
from dartspec.gateway.served import ServedModel
from dartspec.gateway.served import models as served_models
from dartspec.gateway.service import Generation
from dartspec.v1 import gateway_pb2, gateway_pb2_grpc


class GatewayServicer(gateway_pb2_grpc.GatewayServiceServicer):
    """GatewayService of gateway.proto."""

    def __init__(self, generation: Generation, fleet: Fleet, keys: ApiKeys) -> None:
        self._generation = generation
        self._fleet = fleet
        self._keys = keys

    async def Generate(  # noqa: N802 - the name in gateway.proto
        self, request: gateway_pb2.GenerateRequest, context: grpc.aio.ServicerContext
    ) -> None:
        # Writing here rather than yielding: a client that goes away cancels the write or the wait for the next
        # message, and either closes the answer at once.
        metadata = context.invocation_metadata()
        client = self._keys.client(authorization(metadata))
        asked = replace(
            request_from_proto(request),
            route=route_from_metadata(metadata or ()),
            traceparent=entry(metadata, "traceparent"),
        )
        answer = self._generation.generate(asked, context.time_remaining(), client)
        async with aclosing(answer) as messages:
            async for message in messages:
                await context.write(response_to_proto(message))

    async def ListModels(  # noqa: N802
        self, request: gateway_pb2.ListModelsRequest, context: grpc.aio.ServicerContext
    ) -> gateway_pb2.ListModelsResponse:
        models = [_served_to_proto(served) for served in served_models(self._fleet)]
        return gateway_pb2.ListModelsResponse(models=models)


class RegistryServicer(gateway_pb2_grpc.RegistryServiceServicer):
    """RegistryService of gateway.proto. ``changed`` is called after each announcement."""

    def __init__(self, registry: Registry, changed: Callable[[], None]) -> None:
        self._registry = registry
        self._changed = changed

    async def Announce(  # noqa: N802 - the name in gateway.proto
        self, request: gateway_pb2.AnnounceRequest, context: grpc.aio.ServicerContext
    ) -> gateway_pb2.AnnounceResponse:
        next_within_ms = self._registry.announce(record_from_proto(request.record))
        self._changed()
        return gateway_pb2.AnnounceResponse(next_within_ms=next_within_ms)


def _served_to_proto(served: ServedModel) -> gateway_pb2.ServedModel:
    """A model that can be asked for."""
    model = served.model
    return gateway_pb2.ServedModel(
        name=model.name,
        model_fingerprint=model.fingerprint,
        tokenizer_fingerprint=model.tokenizer_fingerprint,
        context_length=model.context_length,
        vocab_size=model.vocab_size,
        has_head=served.has_head,
        ready_replicas=served.ready,
        replicas=served.replicas,
    )
