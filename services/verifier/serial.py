"""Vector operations of torch on the calling thread.

torch shares larger tensors among its threads. For a single row of logits that saves little when the cores are free, and
costs milliseconds when another process has one of them: every operation waits for a thread that does not run.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

# Elements of an operation that torch leaves to the calling thread; it shares from 32,768 on.
SERIAL_ELEMENTS = 16_384


def exp_in_place(values: NDArray[np.float64]) -> None:
    """exp of a vector, by torch, whose exp is the faster one."""
    for part in torch.from_numpy(values).split(SERIAL_ELEMENTS):
        part.exp_()
