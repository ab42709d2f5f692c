"""API keys on gRPC calls."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import grpc

from dartspec.gateway.api_keys import ApiKeys
from dartspec.services.common.errors import Unauthenticated

# Supervisors and tools ask these before they know anybody.
FREE = ("/grpc.health.", "/grpc.reflection.")


def entry(metadata: Iterable[tuple[str, str | bytes]] | None, wanted: str) -> str:
    """An entry of a call's metadata that is text, or an empty string."""
    return next((value for name, value in metadata or () if name == wanted and isinstance(value, str)), "")


def authorization(metadata: Iterable[tuple[str, str | bytes]] | None) -> str:
    """The authorization entry of a call's metadata, or an empty string."""
    return entry(metadata, "authorization")


class KeyInterceptor(grpc.aio.ServerInterceptor):
    """Refuses calls without a known key, those of health and reflection apart."""

    def __init__(self, keys: ApiKeys) -> None:
        self._keys = keys

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        if not handler_call_details.method.startswith(FREE):
            try:
                self._keys.client(authorization(handler_call_details.invocation_metadata))
            except Unauthenticated as error:
                return _refusing(error)
        return await continuation(handler_call_details)


def _refusing(error: Unauthenticated) -> grpc.RpcMethodHandler:
    """A handler that raises before it reads anything, whatever the kind of the call."""

    async def refuse(requests: Any, context: grpc.aio.ServicerContext) -> None:
        raise error

    return grpc.stream_stream_rpc_method_handler(refuse)
