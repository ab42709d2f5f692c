"""Memory that is reserved at once and taken when it is written, and memory that goes back to the system."""

from __future__ import annotations

import contextlib
import ctypes
import math
import mmap

import torch


def zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """As `torch.zeros`, for writing in any mode. In main memory a page is taken when something is written to it, while
    `torch.zeros` writes them all: gigabytes at start for sessions that may never come."""
    with torch.inference_mode(False):
        if device.type != "cpu":
            return torch.zeros(shape, dtype=dtype, device=device)
        # Not by way of numpy, which asks for pages of 2 MiB, each of them far more than a session writes in one place.
        memory = mmap.mmap(-1, math.prod(shape) * dtype.itemsize, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        return torch.frombuffer(memory, dtype=dtype).view(shape)


def give_back() -> None:
    """Return what was freed, as after a load, to the system. glibc keeps it otherwise; other libraries do it anyway."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
