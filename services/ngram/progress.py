"""Progress bars of long work, on a terminal only."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tqdm import tqdm

_UNITS = {"write": "B", "table": "lines"}


@contextmanager
def stages(quiet: bool, unit: str = "n-grams") -> Iterator[Callable[[str, int, int], None]]:
    """One bar a stage: a function for the extension to call with the stage, what is done and the total."""
    bar: tqdm[Any] | None = None
    stage = ""

    def report(name: str, done: int, total: int) -> None:
        nonlocal bar, stage
        if bar is None or name != stage or done < bar.n or total != bar.total:
            if bar is not None:
                bar.close()
            unit_name = _UNITS.get(name, unit)
            bar = tqdm(total=total, desc=name, unit=unit_name, unit_scale=True, disable=True if quiet else None)
            stage = name
        bar.update(done - bar.n)

    try:
        yield report
    finally:
        if bar is not None:
            bar.close()


def reading_bar(total: int, quiet: bool) -> tqdm[Any]:
    """A bar over the bytes of a corpus, with rate and time left."""
    return tqdm(total=total, desc="read", unit="B", unit_scale=True, disable=True if quiet else None)
