"""`dartspec health`: one question about a service's health, for supervisors that run a command to learn it."""

from __future__ import annotations

import asyncio

import click
import grpc

from dartspec.cli.exit_codes import FAILED
from dartspec.cli.finite import Finite
from dartspec.services.common.channel import error_from_rpc, open_channel
from dartspec.services.common.errors import Unavailable
from dartspec.services.common.tls import ClientTls


@click.command()
@click.argument("address")
@click.option("--service", default="", help="Name of one gRPC service there.  [default: the server as a whole]")
@click.option("--seconds", type=Finite(min=0, min_open=True), default=5.0, show_default=True, help="Wait so long.")
def health(address: str, service: str, seconds: float) -> int:
    """Ask the service at ADDRESS (host:port or unix:/path) whether it serves.

    Exit code 0 when it does, 1 when it says that it does not or does not answer.
    """
    status = asyncio.run(_status(address, service, seconds))
    click.echo(status)
    return 0 if status == "SERVING" else FAILED


async def _status(address: str, service: str, seconds: float) -> str:
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    async with open_channel(address, ClientTls.of_environment()) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        try:
            answer = await stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=seconds)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.NOT_FOUND:
                raise Unavailable(f"{address} has no service {service!r}") from error
            raise error_from_rpc(error, address) from error
    return str(health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status))
