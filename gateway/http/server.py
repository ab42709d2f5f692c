"""The HTTP server: keys, errors, start and stop."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from aiohttp import web
from prometheus_client import CollectorRegistry

from dartspec.gateway import served
from dartspec.gateway.api_keys import ApiKeys
from dartspec.gateway.fleet import Fleet
from dartspec.gateway.http.errors import INVALID, Kind, body, error_body, error_headers, kind_of
from dartspec.gateway.http.handlers import CLIENT, Handlers
from dartspec.gateway.metrics import GatewayCollector
from dartspec.gateway.service import Generation
from dartspec.services.common.channel import MAX_MESSAGE_BYTES
from dartspec.services.common.errors import DartspecError, FailedPrecondition, InternalError
from dartspec.services.common.tls import ServerTls

log = logging.getLogger(__name__)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
WITH_KEY = "/v1/"  # paths that want an API key; the others are for supervisors


class HttpServer:
    """Serves ``handlers``. `start`, then `stop`, which lets open answers go on for ``drain_seconds``."""

    def __init__(self, handlers: Handlers, keys: ApiKeys, drain_seconds: float, tls: ServerTls | None = None) -> None:
        self._keys = keys
        self._tls = tls
        app = web.Application(middlewares=[self._guard], client_max_size=MAX_MESSAGE_BYTES)
        app.add_routes(handlers.routes)
        # A client that goes away cancels the handler, which closes its answers.
        self._runner = web.AppRunner(
            app, handler_cancellation=True, access_log=None, shutdown_timeout=drain_seconds, handle_signals=False
        )

    async def start(self, listen: str) -> str:
        """Listen on "host:port" (0: a free port). Returns the URL. Raises FailedPrecondition when that cannot be."""
        host, _, port = listen.rpartition(":")
        await self._runner.setup()
        try:
            context = self._tls.context() if self._tls is not None else None
            await web.TCPSite(self._runner, host.strip("[]"), int(port), ssl_context=context).start()
        except OSError as error:
            await self._runner.cleanup()
            raise FailedPrecondition(
                f"--http-listen: cannot listen on {listen}: {error.strerror or error}; choose another port (0 picks "
                "a free one) or stop what uses it",
                field="--http-listen",
            ) from error
        return f"{'http' if self._tls is None else 'https'}://{host}:{self._runner.addresses[0][1]}"

    async def stop(self) -> None:
        """Take nothing new, let answers end."""
        await self._runner.cleanup()

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Keys in, errors out: every error has the API's form."""
        try:
            if request.path.startswith(WITH_KEY):
                request[CLIENT] = self._keys.client(request.headers.get("Authorization", ""))
            return await handler(request)
        except DartspecError as error:
            return _refusal(error)
        except web.HTTPException as error:  # no such path, wrong method, too large a body
            message = f"{error.reason}: {request.method} {request.path}"
            kind = Kind(error.status, INVALID, error.reason.lower().replace(" ", "_"))
            headers = {"Allow": error.headers["Allow"]} if "Allow" in error.headers else {}
            return web.json_response(body(message, kind, None), status=error.status, headers=headers)
        except ConnectionError:  # the client is gone
            raise
        except Exception as error:
            log.exception("unexpected error in a request")
            return _refusal(InternalError(f"{type(error).__name__}: {error}"))


def _refusal(error: DartspecError) -> web.Response:
    return web.json_response(error_body(error), status=kind_of(error).status, headers=error_headers(error))


def http_server(
    generation: Generation, fleet: Fleet, keys: ApiKeys, drain_seconds: float, tls: ServerTls | None = None
) -> HttpServer:
    """The server of a gateway's parts."""
    registry = CollectorRegistry()
    registry.register(GatewayCollector(generation.stats))
    handlers = Handlers(generation, lambda: served.models(fleet), lambda: served.ready(fleet), registry)
    return HttpServer(handlers, keys, drain_seconds, tls)
