"""How fast this machine multiplies matrices in each dtype: `python -m dartspec.services.verifier.probe` prints JSON.

`dartspec doctor` runs it as a process of its own, so that a torch that cannot be imported is a finding, not a crash.
"""

from __future__ import annotations

import json
import statistics
import time
from typing import Any

import torch

ROWS = 64  # a verification pass of one session
SIZE = 2048
REPEATS = 15
WARM_UP = 3
MOST_SECONDS = 1.0  # for one dtype; a product in bfloat16 takes seconds on processors that lack it


def multiply_gflops(dtype: torch.dtype, device: torch.device) -> float:
    """Median billions of operations per second of a [64, 2048] x [2048, 2048] product."""
    left = torch.ones(ROWS, SIZE, dtype=dtype, device=device)
    right = torch.ones(SIZE, SIZE, dtype=dtype, device=device)
    seconds: list[float] = []
    while len(seconds) < WARM_UP + REPEATS and sum(seconds) < MOST_SECONDS:
        started = time.perf_counter()
        product = left @ right
        float(product[0, 0])  # waits for a device that works in the background
        seconds.append(time.perf_counter() - started)
    return 2 * ROWS * SIZE * SIZE / statistics.median(seconds[WARM_UP:] or seconds) / 1e9


def probe() -> dict[str, Any]:
    """Version of torch, its threads, and GFLOP/s by device and dtype."""
    devices = [torch.device("cpu")]
    if torch.cuda.is_available():
        devices += [torch.device("cuda", index) for index in range(torch.cuda.device_count())]
    dtypes = {"float32": torch.float32, "bfloat16": torch.bfloat16}
    return {
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "devices": [
            {
                "device": str(device),
                "name": torch.cuda.get_device_name(device) if device.type == "cuda" else "",
                "memory_bytes": torch.cuda.mem_get_info(device)[1] if device.type == "cuda" else 0,
                "gflops": {name: multiply_gflops(dtype, device) for name, dtype in dtypes.items()},
            }
            for device in devices
        ],
    }


if __name__ == "__main__":
    with torch.inference_mode():
        print(json.dumps(probe()))
