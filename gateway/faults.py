"""What the failures of a verifier's stream and sessions mean."""

from __future__ import annotations

import grpc

from dartspec.services.common.channel import error_from_rpc
from dartspec.services.common.errors import InternalError, Unavailable, error_from_code
from dartspec.v1 import verifier_pb2


def own_fault(failed: verifier_pb2.FailedEvent) -> bool:
    """Whether a failure says that the verifier is broken; a refusal with a time to ask again does not."""
    error = error_from_code(failed.code, failed.message)
    return isinstance(error, InternalError) or (isinstance(error, Unavailable) and not failed.retry_after_ms)


def explain(error: Exception, address: str) -> str:
    """Why a stream ended, for people."""
    if isinstance(error, grpc.aio.AioRpcError):
        return error_from_rpc(error, address).message
    return str(error) or type(error).__name__
