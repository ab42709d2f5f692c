"""Channels as every dartspec client opens them, and the way back from a status to an error."""

from __future__ import annotations

import os
from typing import Any

# The core's own lines on stderr say what our errors say, in worse words. Read when grpc is first used.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

import grpc
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from dartspec.services.common.errors import DartspecError, error_from_code
from dartspec.services.common.tls import ClientTls

MAX_MESSAGE_BYTES = 64 * 1024 * 1024

GRPC_OPTIONS: list[tuple[str, Any]] = [
    # A long prompt or a batch of trees passes gRPC's default of 4 MiB.
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    # A prefill can be silent for long; pings must neither close the connection nor be punished by the server.
    ("grpc.keepalive_time_ms", 60_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 30_000),
    ("grpc.keepalive_permit_without_calls", 1),
]

_CLIENT_OPTIONS: list[tuple[str, Any]] = [
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    # Addresses in this system are direct; a proxy from the environment would break them.
    ("grpc.enable_http_proxy", 0),
]


def open_channel(address: str, tls: ClientTls | None = None) -> grpc.aio.Channel:
    """A channel to "host:port", over TLS where ``tls`` is given, or to "unix:/path", where nobody else listens."""
    options = [*GRPC_OPTIONS, *_CLIENT_OPTIONS]
    if address.startswith("unix:"):
        # The default, the escaped path, is not an authority by RFC 3986, and strict servers reset the stream.
        options.append(("grpc.default_authority", "localhost"))
    elif tls is not None:
        return grpc.aio.secure_channel(address, tls.credentials(), options=options)
    return grpc.aio.insecure_channel(address, options=options)


def error_from_rpc(error: grpc.aio.AioRpcError, peer: str) -> DartspecError:
    """The DartspecError that a server raised, or what the transport said, with the peer's name in front."""
    code, details = error.code(), error.details() or ""
    field, retry_after_ms = "", 0
    status = rpc_status.from_call(error)
    for detail in status.details if status is not None else ():
        bad_request, retry = error_details_pb2.BadRequest(), error_details_pb2.RetryInfo()
        if detail.Unpack(bad_request) and bad_request.field_violations:
            field = bad_request.field_violations[0].field
        elif detail.Unpack(retry):
            retry_after_ms = retry.retry_delay.ToMilliseconds()
    message = details if status is not None or field else f"{peer}: {details}"
    return error_from_code(int(code.value[0]), message, field=field, retry_after_ms=retry_after_ms)
