"""Reading an index into memory while the service goes on, with progress for whoever waits."""

from __future__ import annotations

import asyncio
import logging
import sys
import time

import ngram_index
from tqdm import tqdm

from dartspec.services.ngram.errors import index_errors

log = logging.getLogger(__name__)

POLL_SECONDS = 0.05
LOG_SECONDS = 5.0


async def load(path: str, backing: str) -> ngram_index.Index:
    """Open an index and bring all of it to where ``backing`` wants it. Cancelling this ends the reading soon.

    On a terminal there is a bar, elsewhere a line every few seconds. Raises as `index_errors` does.
    """
    start = time.monotonic()
    with index_errors():
        loading = ngram_index.Loading(path, backing)
        try:
            await _watch(path, loading, start)
        finally:
            loading.stop()  # changes nothing once it has finished
        index = loading.result()
    done, _ = loading.progress
    log.info("%s: %s", path, _rate(done, index.file_bytes, time.monotonic() - start))
    return index


async def _watch(path: str, loading: ngram_index.Loading, start: float) -> None:
    logged = start
    bar = tqdm(desc=path, unit="B", unit_scale=True, leave=False, disable=not sys.stderr.isatty())
    with bar:
        while not loading.finished:
            await asyncio.sleep(POLL_SECONDS)
            done, total = loading.progress
            bar.total = total or None
            bar.update(done - bar.n)
            now = time.monotonic()
            if bar.disable and now - logged >= LOG_SECONDS:
                logged = now
                log.info("%s: %s", path, _rate(done, total, now - start))


def _rate(done: int, total: int, seconds: float) -> str:
    return (
        f"{done / 1e6:,.1f} of {total / 1e6:,.1f} MB in memory after {seconds:.1f} s, {done / 1e6 / seconds:,.1f} MB/s"
    )
