"""`dartspec top`: what a frame shows, and the command against a real gateway."""

from __future__ import annotations

import io
import re

from rich.console import Console

from dartspec.cli.top import parse_metrics
from dartspec.cli.top_frame import View, frame
from dartspec.gateway.config import Settings
from dartspec.gateway.serve import running
from dartspec.v1 import common_pb2, gateway_pb2
from tests.fakes import FakeVerifier, serving
from tests.unit.cli.command import dartspec

TEXT = """# HELP dartspec_gateway_rounds_total Rounds.
dartspec_gateway_rounds_total 10.0
dartspec_gateway_draft_tokens_total 80.0
dartspec_gateway_accepted_tokens_total 25.0
dartspec_gateway_committed_tokens_total 50.0
dartspec_gateway_requests_total{mode="dart",reason="stop"} 3.0
dartspec_gateway_ledger_seconds_total{part="verify"} 6.0
dartspec_gateway_ledger_seconds_total{part="draft"} 2.0
process_cpu_seconds_total 4.0
"""


def view(at: float, rounds: float) -> View:
    load = common_pb2.LoadReport(sessions=3, kv_used=1, kv_capacity=4, accepted_per_round=2.5, pass_ms=31.25)
    ready = gateway_pb2.Replica(address="a:1", state=gateway_pb2.REPLICA_STATE_READY, load=load, max_sessions=9)
    down = gateway_pb2.Replica(address="b:1", state=gateway_pb2.REPLICA_STATE_DOWN)
    metrics = {**parse_metrics(TEXT), ("rounds_total",): rounds}
    return View(at, gateway_pb2.GetStatusResponse(uptime_seconds=3725, version="1"), (ready, down), metrics)


def shown(now: View, before: View | None) -> str:
    console = Console(width=160, file=io.StringIO())
    with console.capture() as capture:
        console.print(frame(now, before))
    return re.sub(r" +", " ", capture.get())


def test_metrics_are_read_by_name_and_labels() -> None:
    metrics = parse_metrics(TEXT)
    assert metrics["rounds_total",] == 10.0
    assert metrics["requests_total", "dart", "stop"] == 3.0
    assert len(metrics) == 7  # not the process's own


def test_a_frame_shows_rates_since_the_one_before() -> None:
    text = shown(view(12.0, 30.0), view(10.0, 10.0))
    assert "up 1:02:05" in text
    assert "a:1 │ ready │ 3/9" in text
    assert "25%" in text
    assert "31.2" in text
    assert "b:1 │ down" in text
    assert "rounds/s │ 10.0" in text  # 20 in 2 seconds
    first = shown(view(12.0, 10.0), None)
    assert "accepted a round │ 2.50 │ of the verified │ 31%" in first
    assert "draft 25%" in first
    assert "verify 75%" in first


async def test_one_frame_of_a_gateway() -> None:
    async with (
        serving(FakeVerifier()) as verifier,
        running(Settings(listen=("127.0.0.1:0",), metrics_listen="127.0.0.1:0", verifier=(verifier,))) as gateway,
    ):
        result = await dartspec("top", "--once", "--gateway", gateway.addresses[0], COLUMNS="200")
        assert result.code == 0, result.err
        assert verifier in result.out
        assert "toy" in result.out
        assert "replicas 1/1" in result.out
    result = await dartspec("top", "--once", "--gateway", gateway.addresses[0])
    assert result.code == 1
    assert result.err.startswith("error: no gateway answers")
