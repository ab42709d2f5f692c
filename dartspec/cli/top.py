"""`dartspec top`: a gateway's replicas, modes, acceptance and ledger, live."""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
import urllib.request

import click
import grpc

from dartspec.cli.client import mapped_error
from dartspec.cli.finite import Finite
from dartspec.cli.replicas import CALL_SECONDS, gateway_option
from dartspec.cli.top_frame import Metrics, View, frame
from dartspec.services.common.channel import open_channel
from dartspec.services.common.credentials import credentials
from dartspec.services.common.errors import Unavailable
from dartspec.services.common.tls import ClientTls
from dartspec.v1 import gateway_pb2, gateway_pb2_grpc

PREFIX = "dartspec_gateway_"
_LINE = re.compile(rf"^{PREFIX}(\w+)(?:{{(.*)}})? (\S+)$", re.MULTILINE)
_LABEL = re.compile(r'\w+="([^"]*)"')


@click.command()
@gateway_option
@click.option("--metrics", default="", metavar="URL", help="Its metrics, such as http://127.0.0.1:8000/metrics.")
@click.option("--interval", default=1.0, show_default=True, type=Finite(0.1), help="Seconds between frames.")
@click.option("--once", is_flag=True, help="Print one frame and end.")
def top(gateway: str, metrics: str, interval: float, once: bool) -> None:
    """Watch the replicas, modes, acceptance and ledger of a gateway, until Ctrl-C."""
    asyncio.run(_watch(gateway, metrics, interval, once))


async def _watch(gateway: str, metrics: str, interval: float, once: bool) -> None:
    from rich.console import Console
    from rich.live import Live

    console = Console()
    async with open_channel(gateway, ClientTls.of_environment()) as channel:
        stub = gateway_pb2_grpc.AdminServiceStub(channel)
        view = await _read(stub, gateway, metrics)
        if once:
            console.print(frame(view, None))
            return
        with Live(frame(view, None), console=console, screen=console.is_terminal, auto_refresh=False) as live:
            while True:
                await asyncio.sleep(interval)
                before = view
                # A gateway that is restarted comes back; until then the last frame stays.
                with contextlib.suppress(Unavailable):
                    view = await _read(stub, gateway, metrics)
                    live.update(frame(view, before), refresh=True)


async def _read(stub: gateway_pb2_grpc.AdminServiceStub, gateway: str, metrics: str) -> View:
    try:
        status, replicas = await asyncio.gather(
            stub.GetStatus(gateway_pb2.GetStatusRequest(), timeout=CALL_SECONDS, metadata=credentials()),
            stub.ListReplicas(gateway_pb2.ListReplicasRequest(), timeout=CALL_SECONDS, metadata=credentials()),
        )
    except grpc.aio.AioRpcError as error:
        raise mapped_error(error, gateway) from error
    values = await asyncio.to_thread(_fetch, metrics) if metrics else None
    return View(time.monotonic(), status, tuple(replicas.replicas), values)


def _fetch(url: str) -> Metrics:
    try:
        with urllib.request.urlopen(url, timeout=CALL_SECONDS) as response:
            return parse_metrics(response.read().decode())
    except (OSError, ValueError) as error:
        raise Unavailable(f"--metrics {url}: {error}") from error


def parse_metrics(text: str) -> Metrics:
    """Values of a gateway's metrics in Prometheus' text format, by name without its prefix, and values of labels."""
    return {(name, *_LABEL.findall(labels or "")): float(value) for name, labels, value in _LINE.findall(text)}
