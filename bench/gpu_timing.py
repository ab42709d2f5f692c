"""Clocks of the GPU check: how long something takes for the caller, for the device, and until the call returns."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

_COPY_BYTES = {"cuda": 4 << 30, "cpu": 32 << 20}


class Clock:
    """The time that the whole check may take."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    def left(self) -> float:
        """Seconds."""
        return self._end - time.monotonic()


def synchronize(device: torch.device) -> None:
    """Wait for everything that was asked of the device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def timed(call: Callable[[], Any], device: torch.device, seconds: float = 0.3, most: int = 30) -> dict[str, float]:
    """Medians in milliseconds after two calls that do not count.

    wall_ms: from the call until the device is done. host_ms: until the call returns; near wall_ms, the device waits for
    the host. device_ms (CUDA): between events before and after, which includes gaps in which the device waited.
    """
    for _ in range(2):
        call()
    synchronize(device)
    walls, hosts, events = [], [], []
    cuda = device.type == "cuda"
    end = time.perf_counter() + seconds
    while len(walls) < 3 or (len(walls) < most and time.perf_counter() < end):
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(2)] if cuda else []
        begin = time.perf_counter()
        if cuda:
            marks[0].record()
        call()
        if cuda:
            marks[1].record()
        returned = time.perf_counter()
        synchronize(device)
        walls.append(1e3 * (time.perf_counter() - begin))
        hosts.append(1e3 * (returned - begin))
        if cuda:
            events.append(marks[0].elapsed_time(marks[1]))
    found = {"wall_ms": rounded(statistics.median(walls)), "host_ms": rounded(statistics.median(hosts))}
    if cuda:
        found["device_ms"] = rounded(statistics.median(events))
    return found


def bandwidth(device: torch.device) -> dict[str, float]:
    """Gigabytes per second of a large copy on the device, bytes read plus written, and of copies to and from it."""
    size = _COPY_BYTES[device.type]
    source = torch.randint(0, 127, (size,), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    found = {"copy_gb_per_s": rate(2 * size, timed(lambda: target.copy_(source), device))}
    if device.type == "cuda":
        part = 256 << 20
        pinned = torch.empty(part, dtype=torch.uint8, pin_memory=True)
        found["to_host_gb_per_s"] = rate(part, timed(lambda: pinned.copy_(source[:part], non_blocking=True), device))
        found["from_host_gb_per_s"] = rate(part, timed(lambda: source[:part].copy_(pinned, non_blocking=True), device))
    return found


def rate(size: int, taken: dict[str, float]) -> float:
    """Gigabytes per second."""
    return rounded(size / taken["wall_ms"] / 1e6)


def rounded(value: float) -> float:
    """Four significant digits."""
    return float(f"{value:.4g}")
