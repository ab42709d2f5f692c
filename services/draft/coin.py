"""The target's sampling noise for a head's candidates, so that a draft follows the coin that the target will toss.

Where the target samples, it chooses argmax_v z(v) / T + G(seed, p, v) (docs/exactness.md), and G is known before z is.
The noise is that of `verifier/noise.py`, here for tensors of any device and any mixture of seeds and positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

_M0, _M1 = 0xD2511F53, 0xCD9E8D57
_W0, _W1 = 0x9E3779B9, 0xBB67AE85
_LOW = 0xFFFFFFFF
_ROUNDS = 10


@dataclass(frozen=True)
class Coin:
    """How one session samples: its noise's seed, its temperature (above 0), the position of the draft's offset 1."""

    seed: int
    temperature: float
    position: int


def noise_rows(coins: Sequence[Coin], depth: int, token_ids: Tensor) -> Tensor:
    """T times G at every candidate: float64 of the shape of ``token_ids``, int64 [sessions * depth, candidates].

    Row s * depth + t belongs to position coins[s].position + t. Candidates are the target's token ids.
    """
    rows = [(coin.seed & _LOW, coin.seed >> 32, coin.position + t) for coin in coins for t in range(depth)]
    columns = np.array(rows, np.int64).T[..., None]  # [3, rows, 1]
    temperatures = np.array([coin.temperature for coin in coins]).repeat(depth)[:, None]
    if token_ids.device.type == "cpu":  # numpy starts its many short operations several times sooner
        return torch.from_numpy(gumbel(token_ids.numpy(), *columns) * temperatures)
    seed_low, seed_high, positions = torch.from_numpy(columns).to(token_ids.device)
    noise = gumbel(token_ids, seed_low, seed_high, positions)
    return noise * torch.from_numpy(temperatures).to(noise.device)


def gumbel(token_ids: Any, seed_low: Any, seed_high: Any, positions: Any) -> Any:
    """G(seed, position, v): int64 arrays or tensors that broadcast together -> float64; seeds as two 32-bit halves."""
    w0, w1, w2, w3 = token_ids >> 2, positions & _LOW, positions * 0, positions * 0
    for r in range(_ROUNDS):
        # Products of two 32-bit words fill 64 bits: a sign bit that they set is masked away with the upper half.
        p0, p1 = w0 * _M0, w2 * _M1
        w1 = (p1 >> 32 & _LOW) ^ (w1 ^ (seed_low + r * _W0 & _LOW))
        w3 = (p0 >> 32 & _LOW) ^ (w3 ^ (seed_high + r * _W1 & _LOW))
        w0, w1, w2, w3 = w1, p1 & _LOW, w3, p0 & _LOW
    lane = token_ids & 3
    numbers: Any = torch if isinstance(token_ids, Tensor) else np
    where, log = numbers.where, numbers.log
    bits = where(lane < 2, where(lane == 0, w0, w1), where(lane == 2, w2, w3))
    return -log(-log(bits / numbers.full_like(bits, 2.0**32, dtype=numbers.float64) + 0.5 / 2.0**32))
