"""`dartspec replicas`: the verifiers of a gateway, and whether it uses them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import click
import grpc
from google.protobuf import json_format

from dartspec.cli.client import mapped_error
from dartspec.services.common.channel import open_channel
from dartspec.services.common.credentials import credentials
from dartspec.services.common.tls import ClientTls
from dartspec.v1 import gateway_pb2, gateway_pb2_grpc

CALL_SECONDS = 10.0
COLUMNS = ("address", "state", "model", "open", "sessions", "kv", "tokens/s", "accepted", "failures")

gateway_option = click.option(
    "--gateway",
    default="127.0.0.1:7000",
    show_default=True,
    envvar="DARTSPEC_GATEWAY",
    show_envvar=True,
    help="Address of a running gateway.",
)


@click.command()
@gateway_option
@click.option("--drain", metavar="ADDRESS", default="", help="First tell the gateway to give this one nothing new.")
@click.option("--undrain", metavar="ADDRESS", default="", help="First tell the gateway to use this one again.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def replicas(gateway: str, drain: str, undrain: str, as_json: bool) -> None:
    """List the verifiers that a gateway knows, with their state there and their load."""
    answer = asyncio.run(_ask(gateway, drain, undrain))
    if as_json:
        click.echo(json.dumps(json_format.MessageToDict(answer, preserving_proto_field_name=True)))
        return
    for line in table([COLUMNS, *(_row(replica) for replica in answer.replicas)]):
        click.echo(line)


async def _ask(gateway: str, drain: str, undrain: str) -> gateway_pb2.ListReplicasResponse:
    async with open_channel(gateway, ClientTls.of_environment()) as channel:
        stub = gateway_pb2_grpc.AdminServiceStub(channel)
        call: dict[str, Any] = {"timeout": CALL_SECONDS, "metadata": credentials()}
        try:
            if drain:
                await stub.DrainReplica(gateway_pb2.DrainReplicaRequest(address=drain), **call)
            if undrain:
                await stub.UndrainReplica(gateway_pb2.UndrainReplicaRequest(address=undrain), **call)
            return await stub.ListReplicas(gateway_pb2.ListReplicasRequest(), **call)
        except grpc.aio.AioRpcError as error:
            raise mapped_error(error, gateway) from error


def _row(replica: gateway_pb2.Replica) -> tuple[str, ...]:
    load, opened = replica.load, replica.open
    return (
        replica.address,
        gateway_pb2.ReplicaState.Name(replica.state).removeprefix("REPLICA_STATE_").lower(),
        replica.model or "-",
        str(opened.auto + opened.plain + opened.dart),
        str(load.sessions),
        f"{load.kv_used / load.kv_capacity:.0%}" if load.kv_capacity else "-",
        f"{load.committed_tokens_per_second:.1f}" if load.committed_tokens_per_second else "-",
        f"{load.accepted_per_round:.2f}" if load.accepted_per_round else "-",
        str(replica.failures),
    )


def table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Lines with aligned columns."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
