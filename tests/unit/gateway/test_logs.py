"""What a gateway logs: one line a request with its id, in both formats, and nothing of what anybody wrote."""

from __future__ import annotations

import json
import logging
import subprocess
import sys

import grpc
import pytest

from dartspec.v1 import gateway_pb2
from tests.fakes import FakeVerifier
from tests.unit.gateway.conftest import StackMaker, until
from tests.unit.gateway.http_client import http_stack, send

SECRET = "marzipan"

PROGRAM = """
import logging
from dartspec.services.common.logs import set_up_logs
set_up_logs("debug", {format!r})
log = logging.getLogger("a.b")
log.debug("one\\ntwo %s", 3, extra={{"request_id": "r7", "tokens": 4}})
try:
    1 / 0
except ZeroDivisionError:
    log.exception("broken")
"""


def lines_of(format: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", PROGRAM.format(format=format)], capture_output=True, check=True)
    assert done.stdout == b""
    return done.stderr.decode().splitlines()


def test_json_is_an_object_a_line() -> None:
    first, second = (json.loads(line) for line in lines_of("json"))
    assert first.pop("time").endswith("+00:00")
    assert first == {"level": "debug", "logger": "a.b", "message": "one\ntwo 3", "request_id": "r7", "tokens": 4}
    assert (second["level"], second["message"]) == ("error", "broken")
    assert second["error"].endswith("ZeroDivisionError: division by zero")


def test_text_is_for_people() -> None:
    lines = lines_of("text")
    assert lines[0].endswith(" DEBUG a.b: one")
    assert lines[-1] == "ZeroDivisionError: division by zero"


def of_requests(caplog: pytest.LogCaptureFixture) -> dict[str, logging.LogRecord]:
    return {r.__dict__["request_id"]: r for r in caplog.records if r.name == "dartspec.gateway.request_log"}


async def test_each_request_has_its_line(stack: StackMaker, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    verifiers = [FakeVerifier(), FakeVerifier()]
    for verifier in verifiers:
        verifier.die_after_events = 10
    async with http_stack(stack, verifiers) as (s, client):
        await s.generate(request_id="good", text=SECRET, stop=[f"{SECRET}?"], mode=gateway_pb2.MODE_PLAIN)
        await client.chat.completions.create(
            model="toy", messages=[{"role": "user", "content": SECRET}], max_tokens=4, extra_body={"request_id": "chat"}
        )
        with pytest.raises(grpc.aio.AioRpcError):
            await s.generate(request_id="bad", text=SECRET, model=f"{SECRET}-model")
        await send(f"{s.gateway.http}/v1/completions", f'{{"prompt": "{SECRET}", "{SECRET}": 1'.encode())
        await send(f"{s.gateway.http}/v1/completions", {"prompt": SECRET, SECRET: 1})
        await send(f"{s.gateway.http}/v1/{SECRET}", {"prompt": SECRET})
        for verifier in verifiers:
            verifier.die_after_events, verifier.hang_after_events = None, 0
        call = s.call(request_id="left", text=SECRET)
        await call.read()
        await until(lambda: any(verifier.sessions for verifier in verifiers))
        call.cancel()
        await until(lambda: not s.gateway.generation.open_requests)
    records = of_requests(caplog)
    assert {name: record.__dict__["code"] for name, record in records.items()} == {
        "good": "OK",
        "chat": "OK",
        "bad": "NOT_FOUND",
        "left": "CANCELLED",
    }
    good = records["good"].__dict__
    assert (good["tokens"], good["reason"], good["mode_used"], good["failovers"]) == (24, "length", "plain", 2)
    assert "request good leaves verifier" in caplog.text
    everything = " ".join(f"{record.getMessage()} {record.__dict__} {record.exc_text}" for record in caplog.records)
    assert SECRET not in everything
