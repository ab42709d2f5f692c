"""Services as processes that start quickly: forked from one that has imported everything, killed and stopped at will.

They run what `dartspec KIND serve` runs. A fresh interpreter would spend most of its start on importing torch.
"""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import os
import signal
import sys
from typing import Any

from dartspec.cli.child import end_with_parent
from dartspec.cli.health import wait_until_serving
from dartspec.gateway.config import Settings
from dartspec.services.common.errors import Unavailable
from dartspec.services.ngram.config import ServeSettings
from dartspec.services.verifier.config import VerifierSettings

AnySettings = Settings | VerifierSettings | ServeSettings

START_SECONDS = 120.0
POLL_SECONDS = 0.02

_fork = multiprocessing.get_context("forkserver")
_fork.set_forkserver_preload(
    [
        "bench.forked",
        "dartspec.gateway.serve",
        "dartspec.services.ngram.serve",
        "dartspec.services.verifier.serve",
        "transformers.models.llama.modeling_llama",
    ]
)


class Forked:
    """A running service that listens on ``settings.listen[0]``."""

    def __init__(self, settings: AnySettings) -> None:
        self.address = settings.listen[0]
        self._process = _fork.Process(target=_run, args=(settings,), daemon=True)
        self._process.start()

    @classmethod
    async def started(cls, settings: AnySettings) -> Forked:
        """A service that serves already. Raises Unavailable when it ends instead or takes too long."""
        process = cls(settings)
        await process.serving()
        return process

    async def serving(self) -> None:
        """Wait until it serves."""
        path = self.address.removeprefix("unix:")
        async with asyncio.timeout(START_SECONDS):
            while not (self.address.startswith("unix:") and os.path.exists(path)):
                self._check()
                await asyncio.sleep(POLL_SECONDS)
        waiting = asyncio.create_task(wait_until_serving(self.address, START_SECONDS))
        while not (await asyncio.wait([waiting], timeout=POLL_SECONDS))[0]:
            self._check()
        waiting.result()

    def signal(self, signum: signal.Signals) -> None:
        """Send a signal."""
        assert self._process.pid is not None
        os.kill(self._process.pid, signum)

    async def ended(self) -> int:
        """Wait for its end. Returns the exit code, negative for a signal."""
        while self._process.is_alive():
            await asyncio.sleep(POLL_SECONDS)
        return self._process.exitcode or 0

    async def kill(self) -> None:
        """SIGKILL; returns when it is gone, and its socket file with it, so that `serving` is not misled."""
        self._process.kill()
        await self.ended()
        self._remove_socket()

    async def stop(self) -> int:
        """SIGTERM, and wait. Returns the exit code."""
        self.signal(signal.SIGTERM)
        code = await self.ended()
        self._remove_socket()
        return code

    def _remove_socket(self) -> None:
        if self.address.startswith("unix:") and os.path.exists(self.address.removeprefix("unix:")):
            os.unlink(self.address.removeprefix("unix:"))

    def _check(self) -> None:
        if not self._process.is_alive():
            raise Unavailable(f"the service on {self.address} ended with exit code {self._process.exitcode}")


def _run(settings: AnySettings) -> None:
    """The child: its words go to stderr, and it does not outlive who forked it."""
    end_with_parent(os.getppid())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    logging.basicConfig(level=settings.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    serve: Any
    if isinstance(settings, Settings):
        from dartspec.gateway.serve import serve
    elif isinstance(settings, ServeSettings):
        from dartspec.services.ngram.serve import serve
    else:
        from dartspec.services.verifier.serve import serve
    asyncio.run(serve(settings))
