"""`dartspec replicas` against a scripted administrative service."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from dartspec.services.common.errors import NotFound
from dartspec.services.common.server import Server
from dartspec.v1 import common_pb2, gateway_pb2, gateway_pb2_grpc


class FakeAdmin(gateway_pb2_grpc.AdminServiceServicer):
    """Knows two replicas; keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str]] = []

    async def ListReplicas(self, request: Any, context: Any) -> Any:  # noqa: N802
        load = common_pb2.LoadReport(
            sessions=7, kv_used=25, kv_capacity=100, committed_tokens_per_second=61.25, accepted_per_round=1.5
        )
        ready = gateway_pb2.Replica(
            address="10.0.0.1:7010",
            state=gateway_pb2.REPLICA_STATE_READY,
            model="toy",
            open=gateway_pb2.ModeCounts(auto=1, plain=2, dart=3),
            load=load,
        )
        down = gateway_pb2.Replica(address="b:1", state=gateway_pb2.REPLICA_STATE_DOWN, failures=2)
        return gateway_pb2.ListReplicasResponse(replicas=[ready, down])

    async def DrainReplica(self, request: Any, context: Any) -> Any:  # noqa: N802
        if request.address == "x:1":
            raise NotFound("address: no verifier 'x:1' is known here", field="address")
        self.told.append(("drain", request.address))
        return gateway_pb2.DrainReplicaResponse()

    async def UndrainReplica(self, request: Any, context: Any) -> Any:  # noqa: N802
        self.told.append(("undrain", request.address))
        return gateway_pb2.UndrainReplicaResponse()


async def run(*arguments: str) -> tuple[int | None, str, str, FakeAdmin]:
    admin, server = FakeAdmin(), Server([])
    gateway_pb2_grpc.add_AdminServiceServicer_to_server(admin, server.grpc_server)
    (address,) = await server.start(["127.0.0.1:0"])
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "dartspec.cli.main", "replicas", "--gateway", address, *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    await server.stop(0)
    return process.returncode, out.decode(), err.decode(), admin


async def test_the_table() -> None:
    code, out, _, _ = await run()
    assert code == 0
    assert [line.split() for line in out.splitlines()] == [
        ["address", "state", "model", "open", "sessions", "kv", "tokens/s", "accepted", "failures"],
        ["10.0.0.1:7010", "ready", "toy", "6", "7", "25%", "61.2", "1.50", "0"],
        ["b:1", "down", "-", "0", "0", "-", "-", "-", "2"],
    ]


async def test_json_and_draining() -> None:
    code, out, _, admin = await run("--json", "--drain", "b:1", "--undrain", "10.0.0.1:7010")
    assert code == 0
    first, second = json.loads(out)["replicas"]
    assert (first["load"]["accepted_per_round"], second["state"]) == (1.5, "REPLICA_STATE_DOWN")
    assert admin.told == [("drain", "b:1"), ("undrain", "10.0.0.1:7010")]


async def test_an_unknown_replica_is_an_error() -> None:
    code, out, err, _ = await run("--drain", "x:1")
    assert code != 0
    assert out == ""
    assert err.startswith("error: address: no verifier 'x:1'")
