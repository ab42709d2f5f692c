"""A service of a stack without a model: `python -m tests.unit.cli.fake_service PARENT_PID NAME ADDRESS BEHAVIOUR`.

It describes itself as a verifier and answers as the scripted gateway of `fake_gateway`.

BEHAVIOUR: serve, serve:FINGERPRINT (of the tokenizer); refuse (ends with an error line and code 2); crash:FILE (dies
when the file appears).
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

from dartspec.cli.child import end_with_parent
from dartspec.services.common.server import Server, wait_for_stop_signal
from dartspec.v1 import gateway_pb2_grpc, verifier_pb2, verifier_pb2_grpc
from tests.unit.cli.fake_gateway import FakeGateway


class FakeVerifier(verifier_pb2_grpc.VerifierServiceServicer):
    """Describes itself."""

    def __init__(self, fingerprint: str) -> None:
        self.fingerprint = fingerprint

    async def Describe(self, request: Any, context: Any) -> verifier_pb2.VerifierServiceDescribeResponse:  # noqa: N802
        return verifier_pb2.VerifierServiceDescribeResponse(
            hello=verifier_pb2.Hello(tokenizer_fingerprint=self.fingerprint, head_fingerprint="head"),
            model="fake",
            architecture="llama",
            dtype="float32",
            device="cpu",
            context_length=128,
            vocab_size=49152,
            draft_length=8,
        )


async def serve(name: str, address: str, fingerprint: str, crash_file: Path | None) -> None:
    """Serve until a signal, or until the file appears."""
    server = Server(["dartspec.v1.VerifierService"])
    verifier_pb2_grpc.add_VerifierServiceServicer_to_server(FakeVerifier(fingerprint), server.grpc_server)
    gateway_pb2_grpc.add_GatewayServiceServicer_to_server(FakeGateway(), server.grpc_server)
    address, *urls = address.split(",")
    addresses = [*await server.start([address]), *urls]
    await server.ready()
    print(f"dartspec {name} ready on {' '.join(addresses)}", flush=True)
    stopped = asyncio.create_task(wait_for_stop_signal())
    while not stopped.done():
        if crash_file is not None and crash_file.exists():
            sys.exit(f"error: {name} lost its mind")
        await asyncio.sleep(0.02)
    await server.stop(0)
    print(f"{name} stopped", file=sys.stderr)


if __name__ == "__main__":
    parent_pid, own_name, own_address, behaviour = sys.argv[1:]
    end_with_parent(int(parent_pid))
    if behaviour == "refuse":
        print("error: model: no directory /nowhere", file=sys.stderr)
        sys.exit(2)
    kind, _, value = behaviour.partition(":")
    tokenizer = value if kind == "serve" and value else "0123456789abcdef"
    asyncio.run(serve(own_name, own_address, tokenizer, Path(value) if kind == "crash" else None))
