"""OpenTelemetry traces: a span for each request, and below it one for each verifier that worked on it.

They hold names, numbers and codes, never text or tokens. The packages are the extra `otel`; without --otel-endpoint
nothing of them is imported and nothing is done.
"""

from __future__ import annotations

import asyncio
import importlib.util
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from dartspec import __version__
from dartspec.services.common.errors import DartspecError

FLUSH_MS = 2_000

Attributes = dict[str, str | int | float]


def otel_endpoint(value: str) -> str | None:
    """A check that the value is empty or the URL of a collector, and that the packages are there."""
    if not value:
        return None
    try:
        parts = urllib.parse.urlsplit(value)
        good = parts.scheme in ("http", "https") and parts.hostname and parts.port
    except ValueError:  # of the port
        good = False
    if not good:
        return f"must be http://HOST:PORT or https://HOST:PORT, got {value!r}"
    if importlib.util.find_spec("opentelemetry") is None:
        return "needs OpenTelemetry, which is not installed: pip install 'dartspec[otel]'"
    return None


class Span:
    """A request's span, or nothing where traces are off."""

    def __init__(self, tracer: Any = None, own: Any = None) -> None:
        self._tracer = tracer
        self._own = own

    def set(self, attributes: Attributes) -> None:
        """Say more about the request; names get the prefix of this project."""
        if self._own is not None:
            self._own.set_attributes(_named(attributes))

    @contextmanager
    def attempt(self, verifier: str, first_index: int) -> Iterator[None]:
        """Around the work of one verifier, which begins at a token index of the answer."""
        if self._own is None:
            yield
            return
        from opentelemetry.trace import set_span_in_context

        # Parents are handed on explicitly: an answer is made by generators that suspend in any order.
        span = self._tracer.start_span(
            "attempt",
            context=set_span_in_context(self._own),
            attributes=_named({"verifier": verifier, "first_index": first_index}),
        )
        with _ending(span, closed=""):  # whoever has all that it wanted of a verifier closes its rounds
            yield


class Traces:
    """Makes spans. `to` or, in tests, around a tracer provider of one's own; `close` sends what is left."""

    def __init__(self, provider: Any = None) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("dartspec.gateway", __version__) if provider is not None else None

    @classmethod
    def to(cls, endpoint: str) -> Traces:
        """Traces that go to a collector in the background; none for an empty endpoint."""
        if not endpoint:
            return cls()
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import SERVICE_NAME, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        provider = TracerProvider(resource=Resource.create({SERVICE_NAME: "dartspec-gateway"}))
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint)))
        return cls(provider)

    @contextmanager
    def request(self, traceparent: str) -> Iterator[Span]:
        """Around everything that is done for a request; ``traceparent``: the caller's span, as W3C has it, or empty."""
        if self._tracer is None:
            yield Span()
            return
        from opentelemetry.trace import SpanKind
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        parent = TraceContextTextMapPropagator().extract({"traceparent": traceparent}) if traceparent else None
        span = self._tracer.start_span("generate", context=parent, kind=SpanKind.SERVER)
        with _ending(span):
            yield Span(self._tracer, span)

    async def close(self) -> None:
        """Send what waits, for two seconds at most, so that a collector that is away does not hold up the end."""
        if self._provider is not None:
            await asyncio.to_thread(self._provider.force_flush, FLUSH_MS)
            await asyncio.to_thread(self._provider.shutdown)


@contextmanager
def _ending(span: Any, closed: str = "CANCELLED") -> Iterator[None]:
    """End the span with what is inside; of an error only its code is told, since messages may quote what users sent.

    ``closed`` is the code of a generator that is closed.
    """
    from opentelemetry.trace import Status, StatusCode

    code = ""
    try:
        yield
    except DartspecError as error:
        code = error.code.name
        raise
    except GeneratorExit:
        code = closed
        raise
    except asyncio.CancelledError:
        code = "CANCELLED"
        raise
    except Exception:
        code = "INTERNAL"
        raise
    finally:
        if code:
            span.set_attribute("rpc.grpc.status", code)
            span.set_status(Status(StatusCode.ERROR, code))
        span.end()


def _named(attributes: Attributes) -> Attributes:
    return {f"dartspec.{name}": value for name, value in attributes.items()}
