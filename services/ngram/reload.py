"""The index files of a running service, and replacing them by new files of the same names."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace

import ngram_index

from dartspec.services.common.errors import DartspecError, FailedPrecondition
from dartspec.services.ngram.errors import index_errors
from dartspec.services.ngram.prefault import load

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class FileIdentity:
    """What tells one version of a file from another."""

    device: int
    inode: int
    modified_ns: int
    size: int

    @classmethod
    def of(cls, path: str) -> FileIdentity | None:
        """Of the file that has this name now; None when there is none that can be looked at."""
        try:
            found = os.stat(path)
        except OSError:
            return None
        return cls(found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size)


@dataclass(frozen=True)
class Served:
    """An index file that is served. ``identity`` is that of the version looked at last, served or refused."""

    path: str
    fingerprint: str
    identity: FileIdentity | None

    async def load(self, backing: str) -> ngram_index.Index:
        """The file as it is now, brought to where ``backing`` wants it.

        Raises FailedPrecondition when it cannot be opened or is for another tokenizer.
        """
        with index_errors():
            # Opening is cheap, so what does not fit is refused before all of it is read.
            index = await asyncio.to_thread(ngram_index.Index.open, self.path)
        self._check(index)
        if backing != "mmap":
            index = await load(self.path, backing)
            self._check(index)
        return index

    def _check(self, index: ngram_index.Index) -> None:
        if index.fingerprint != self.fingerprint:
            raise FailedPrecondition(
                f"{self.path}: the new file is for tokenizer {index.fingerprint}, the old one was for "
                f"{self.fingerprint}; restart the service to serve another tokenizer"
            )


class Reloader:
    """Looks at the files of a server's indexes and swaps those that are others now."""

    def __init__(self, server: ngram_index.Server, served: Sequence[Served], backing: str) -> None:
        self.swaps = 0
        self._server = server
        self._served = list(served)
        self._backing = backing

    async def fill(self) -> None:
        """Bring every index to where it shall live. Calls are answered meanwhile."""
        if self._backing != "mmap":
            for served in self._served:
                await self._swap(served)

    async def reload(self) -> None:
        """Look at every file once, and serve those that are others now.

        One that is missing, damaged or for another tokenizer is logged, and the index that is served stays.
        """
        for at, served in enumerate(self._served):
            identity = FileIdentity.of(served.path)
            if identity == served.identity:
                continue
            self._served[at] = replace(served, identity=identity)
            try:
                await self._swap(served)
            except DartspecError as error:
                log.error("%s; the index that was loaded stays", error.message)
            else:
                self.swaps += 1
                log.info("%s: the new file is served", served.path)

    async def _swap(self, served: Served) -> None:
        index = await served.load(self._backing)
        with index_errors():
            await asyncio.to_thread(self._server.swap, index)

    async def watch(self, hangup: asyncio.Event, seconds: float) -> None:
        """Reload whenever ``hangup`` is set, and every ``seconds`` unless that is 0; until cancelled."""
        while True:
            try:
                async with asyncio.timeout(seconds or None):
                    await hangup.wait()
                log.info("looking for new index files")
            except TimeoutError:
                pass
            hangup.clear()
            await self.reload()
