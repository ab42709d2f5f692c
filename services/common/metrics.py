"""Prometheus metrics of a process, as text over HTTP."""

from __future__ import annotations

from types import TracebackType

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.registry import Collector

from dartspec.services.common.errors import FailedPrecondition


class MetricsEndpoint:
    """An HTTP server in a thread of its own, for as long as a block of code runs."""

    def __init__(self, listen: str) -> None:
        """Listen on "host:port" (0: a free port). Raises FailedPrecondition when that cannot be done."""
        self._registry = CollectorRegistry()
        host, _, port = listen.rpartition(":")
        try:
            self._http, self._thread = start_http_server(int(port), host.strip("[]"), self._registry)
        except OSError as error:
            raise FailedPrecondition(
                f"--metrics-listen: cannot listen on {listen}: {error.strerror or error}; choose another port (0 picks "
                "a free one) or stop what uses it",
                field="--metrics-listen",
            ) from error
        self.address = f"{host}:{self._http.server_port}"

    def show(self, collector: Collector) -> None:
        """Ask ``collector`` at each scrape from now on."""
        self._registry.register(collector)

    def __enter__(self) -> MetricsEndpoint:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()
