"""A gRPC server as every dartspec service starts one: health, reflection, error mapping, graceful stop."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import stat
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import grpc
from google.protobuf import any_pb2
from google.rpc import code_pb2, error_details_pb2, status_pb2
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection
from grpc_status import rpc_status

from dartspec.services.common.channel import GRPC_OPTIONS
from dartspec.services.common.config import address_problem
from dartspec.services.common.errors import DartspecError, FailedPrecondition, InternalError
from dartspec.services.common.tls import ServerTls

log = logging.getLogger(__name__)

DRAIN_SECONDS = 5.0
MAX_PENDING_CALLS = 100_000


class ErrorInterceptor(grpc.aio.ServerInterceptor):
    """Turns DartspecError into a status with google.rpc details, anything unexpected into INTERNAL with a log entry."""

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        handler = await continuation(handler_call_details)
        if handler is None:
            return handler
        if handler.unary_unary:
            inner = handler.unary_unary

            async def unary(request: Any, context: grpc.aio.ServicerContext) -> Any:
                try:
                    return await inner(request, context)
                except Exception as error:
                    return await abort(context, error)

            return grpc.unary_unary_rpc_method_handler(unary, handler.request_deserializer, handler.response_serializer)
        if handler.response_streaming:
            stream_inner = handler.stream_stream or handler.unary_stream

            async def stream(request: Any, context: grpc.aio.ServicerContext) -> AsyncIterator[Any]:
                # Generated servicers of grpc itself (health, reflection) may return a coroutine instead of an iterator.
                result = stream_inner(request, context)
                try:
                    if hasattr(result, "__aiter__"):
                        async for message in result:
                            yield message
                    else:
                        await result
                except Exception as error:
                    await abort(context, error)

            make: Any = (
                grpc.stream_stream_rpc_method_handler if handler.stream_stream else grpc.unary_stream_rpc_method_handler
            )
            return make(stream, handler.request_deserializer, handler.response_serializer)
        return handler


async def abort(context: grpc.aio.ServicerContext, error: Exception) -> None:
    """End the call with the error's status."""
    if isinstance(error, grpc.aio.AbortError):
        raise error
    if not isinstance(error, DartspecError):
        log.exception("unexpected error in a call")
        error = InternalError(f"{type(error).__name__}: {error}")
    status = rpc_status.to_status(status_of(error))
    await context.abort(status.code, status.details, status.trailing_metadata)


def status_of(error: DartspecError) -> status_pb2.Status:
    """The google.rpc.Status of an error: field violations for a bad field, RetryInfo when a retry makes sense."""
    details = []
    if error.field:
        violation = error_details_pb2.BadRequest.FieldViolation(field=error.field, description=error.message)
        details.append(error_details_pb2.BadRequest(field_violations=[violation]))
    if error.retry_after_ms:
        info = error_details_pb2.RetryInfo()
        info.retry_delay.FromMilliseconds(error.retry_after_ms)
        details.append(info)
    packed = []
    for detail in details:
        message = any_pb2.Any()
        message.Pack(detail)
        packed.append(message)
    return status_pb2.Status(code=code_pb2.Code.Value(error.code.name), message=error.message, details=packed)


class Server:
    """A grpc.aio server. Add servicers to ``grpc_server``, then ``start``, ``ready``, ``stop``.

    With ``tls`` it speaks TLS on TCP addresses.
    """

    def __init__(
        self,
        service_names: Sequence[str],
        interceptors: Sequence[grpc.aio.ServerInterceptor] = (),
        connection_age_seconds: float = 0.0,
        tls: ServerTls | None = None,
    ) -> None:
        self._tls = tls
        # Without this two processes could listen on one port and share its calls.
        options = [
            *GRPC_OPTIONS,
            ("grpc.so_reuseport", 0),
            # By default calls are dropped at random, as CANCELLED, once a thousand wait to be begun; that is a burst of
            # clients, and what is too much is refused with a reason.
            ("grpc.server.max_pending_requests", MAX_PENDING_CALLS),
            ("grpc.server.max_pending_requests_hard_limit", 2 * MAX_PENDING_CALLS),
        ]
        if connection_age_seconds:
            # A connection that is told to go ends with its last call, however long that takes.
            options.append(("grpc.max_connection_age_ms", max(1, int(1e3 * connection_age_seconds))))
        self.grpc_server = grpc.aio.server(interceptors=[ErrorInterceptor(), *interceptors], options=options)
        self._health = health.aio.HealthServicer()
        self._names = ["", *service_names]
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self.grpc_server)
        all_names = [*service_names, health.SERVICE_NAME, reflection.SERVICE_NAME]
        reflection.enable_server_reflection(all_names, self.grpc_server)

    async def start(self, addresses: Sequence[str]) -> list[str]:
        """Listen on "host:port" and "unix:/path" addresses, not ready yet. Returns them with port 0 filled in.

        Raises FailedPrecondition when an address is in use or cannot be bound.
        """
        for name in self._names:
            await self._health.set(name, health_pb2.HealthCheckResponse.NOT_SERVING)
        bound = [self._bind(address) for address in addresses]
        await self.grpc_server.start()
        return bound

    async def ready(self) -> None:
        """Report SERVING."""
        for name in self._names:
            await self._health.set(name, health_pb2.HealthCheckResponse.SERVING)

    async def not_ready(self) -> None:
        """Report NOT_SERVING from now on; calls are answered as before."""
        await self._health.enter_graceful_shutdown()

    async def stop(self, grace: float = DRAIN_SECONDS) -> None:
        """Report NOT_SERVING, take nothing new, let calls in flight finish for ``grace`` seconds."""
        await self._health.enter_graceful_shutdown()
        await self.grpc_server.stop(grace)

    def _bind(self, address: str) -> str:
        if problem := address_problem(address):
            raise FailedPrecondition(f"cannot listen on {address}: {problem}")
        if address.startswith("unix:"):
            path = Path(address.removeprefix("unix:"))
            if not path.parent.is_dir():
                raise FailedPrecondition(f"cannot listen on {address}: there is no directory {path.parent}")
            remove_stale_socket(path)
        try:
            if self._tls is not None and not address.startswith("unix:"):
                port = self.grpc_server.add_secure_port(address, self._tls.credentials())
            else:
                port = self.grpc_server.add_insecure_port(address)
        except RuntimeError as error:
            raise FailedPrecondition(
                f"cannot listen on {address}: address in use or not ours; choose another port (0 picks a free one)"
            ) from error
        return address if address.startswith("unix:") else f"{address.rpartition(':')[0]}:{port}"


def remove_stale_socket(path: Path) -> None:
    """Remove a socket file that nobody answers on.

    Raises FailedPrecondition when somebody does, or when the file is not a socket and so not ours to remove.
    """
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise FailedPrecondition(f"cannot listen on unix:{path}: the file is not a socket; choose another path")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
            return
        except OSError as error:
            raise FailedPrecondition(f"cannot listen on unix:{path}: {error}") from error
    raise FailedPrecondition(
        f"cannot listen on unix:{path}: another process answers there; stop it or choose another path"
    )


async def wait_for_stop_signal() -> None:
    """Return on SIGINT or SIGTERM."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for signum in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(signum, stop.set)
    await stop.wait()
