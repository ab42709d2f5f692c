"""Spans of a gateway: one a request, one below it for each verifier that worked on it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc
import pytest
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from dartspec.gateway.tracing import Traces, otel_endpoint
from dartspec.v1 import gateway_pb2
from tests.fakes import FakeVerifier
from tests.unit.gateway.conftest import StackMaker, until
from tests.unit.gateway.http_client import http_stack

SECRET = "marzipan"
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TRACEPARENT = f"00-{TRACE}-{PARENT}-01"


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(Traces, "to", lambda endpoint: Traces(provider))
    return exporter


def one(spans: Any, name: str) -> Any:
    (span,) = [span for span in spans if span.name == name]
    return span


async def test_a_request_and_its_attempts(stack: StackMaker, exporter: InMemorySpanExporter) -> None:
    verifiers = [FakeVerifier(), FakeVerifier()]
    verifiers[0].die_after_events = 3
    async with stack(verifiers, routing="round_robin") as s:
        addresses = [link.address for link in s.gateway.fleet.links]
        while not exporter.get_finished_spans() or len(exporter.get_finished_spans()) < 3:
            exporter.clear()  # the first may have gone to the one that lives
            reply = await s.generate(
                mode=gateway_pb2.MODE_PLAIN, request_id="r7", text=SECRET, metadata=(("traceparent", TRACEPARENT),)
            )
        spans = exporter.get_finished_spans()
    request = one(spans, "generate")
    assert f"{request.context.trace_id:032x}" == TRACE
    assert f"{request.parent.span_id:016x}" == PARENT
    assert request.attributes["dartspec.request_id"] == "r7"
    assert request.attributes["dartspec.tokens"] == len(reply.ids) == 24
    assert request.attributes["dartspec.prompt_tokens"] == len(reply.start.prompt_token_ids)
    assert request.attributes["dartspec.reason"] == "length"
    assert request.status.is_ok or request.status.status_code.name == "UNSET"
    attempts = sorted((span for span in spans if span.name == "attempt"), key=lambda span: span.start_time)
    assert [span.parent.span_id for span in attempts] == [request.context.span_id] * 2
    assert {span.attributes["dartspec.verifier"] for span in attempts} == {*addresses}
    assert [span.attributes["dartspec.first_index"] for span in attempts] == [0, 3]
    assert [span.attributes.get("rpc.grpc.status") for span in attempts] == ["UNAVAILABLE", None]
    assert SECRET not in " ".join(span.to_json() for span in spans)


async def test_errors_and_clients_that_leave_have_their_code(stack: StackMaker, exporter: InMemorySpanExporter) -> None:
    verifier = FakeVerifier()
    async with http_stack(stack, [verifier]) as (s, _):
        with pytest.raises(grpc.aio.AioRpcError):
            await s.generate(model=SECRET)
        verifier.hang_after_events = 0
        call = s.call()
        await call.read()
        await until(lambda: bool(verifier.sessions))
        call.cancel()
        await until(lambda: not s.gateway.generation.open_requests)
        spans = exporter.get_finished_spans()
    codes = sorted(span.attributes["rpc.grpc.status"] for span in spans if span.name == "generate")
    assert codes == ["CANCELLED", "NOT_FOUND"]
    assert SECRET not in " ".join(span.to_json() for span in spans)


class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    """Takes what is exported."""

    def __init__(self) -> None:
        self.names: list[str] = []

    async def Export(self, request: Any, context: Any) -> Any:  # noqa: N802
        self.names += [s.name for r in request.resource_spans for scope in r.scope_spans for s in scope.spans]
        return trace_service_pb2.ExportTraceServiceResponse()


async def test_spans_reach_a_collector_before_the_gateway_ends(stack: StackMaker) -> None:
    collector, server = Collector(), grpc.aio.server()
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(collector, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with stack([FakeVerifier()], otel_endpoint=f"http://127.0.0.1:{port}") as s:
        await asyncio.gather(*(s.generate() for _ in range(3)))
    assert sorted(collector.names) == ["attempt"] * 3 + ["generate"] * 3
    await server.stop(0)


@contextmanager
def without_opentelemetry(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setattr("importlib.util.find_spec", lambda name: None)
        yield


def test_endpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    assert otel_endpoint("") is None
    assert otel_endpoint("http://collector:4317") is None
    for wrong in ("collector:4317", "http://collector", "grpc://collector:4317", "http://collector:port"):
        assert "http://HOST:PORT" in str(otel_endpoint(wrong))
    with without_opentelemetry(monkeypatch):
        assert "dartspec[otel]" in str(otel_endpoint("http://collector:4317"))
        assert otel_endpoint("") is None
