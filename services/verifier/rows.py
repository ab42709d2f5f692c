"""Rows of logits on the host, one at a time on one thread.

torch shares larger tensors among its threads. For a single row that saves little when the cores are free, and costs
milliseconds when another process has one of them: every operation waits for a thread that does not run.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from dartspec.services.common.types import Float32

# Elements of an operation that torch leaves to the calling thread; it shares from 32,768 on.
SERIAL_ELEMENTS = 16_384


def host_row(logits: torch.Tensor) -> Float32:
    """A row [V] of any floating type on the host, as float32; float32 itself without a copy."""
    if logits.dtype == torch.bfloat16:
        # The upper half of a float32.
        return np.left_shift(logits.view(torch.uint16).numpy(), 16, dtype=np.uint32).view(np.float32)
    return logits.float().numpy()


def exp_in_place(values: NDArray[np.float64]) -> None:
    """exp of a vector, by torch, whose exp is the faster one."""
    for part in torch.from_numpy(values).split(SERIAL_ELEMENTS):
        part.exp_()
