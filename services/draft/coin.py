"""The target's sampling noise for a head's candidates, so that a draft follows the coin that the target will toss.

Where the target samples, it chooses argmax_v z(v) / T + G(seed, p, v) (docs/exactness.md), and G is known before z is.
The noise is that of `verifier/noise.py`, here for tensors of any device and any mixture of seeds and positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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
    keys = [(coin.seed & _LOW, coin.seed >> 32, coin.position) for coin in coins]
    columns = torch.tensor(keys, dtype=torch.int64).to(token_ids.device).repeat_interleave(depth, 0)[..., None]
    seed_low, seed_high, first = columns.unbind(1)  # [rows, 1] each
    offsets = torch.arange(depth, device=token_ids.device).repeat(len(coins))[:, None]
    temperatures = torch.tensor([coin.temperature for coin in coins], dtype=torch.float64).to(token_ids.device)
    noise = gumbel(token_ids, first + offsets, seed_low, seed_high)
    return noise * temperatures.repeat_interleave(depth)[:, None]


def gumbel(token_ids: Tensor, positions: Tensor, seed_low: Tensor, seed_high: Tensor) -> Tensor:
    """G(seed, position, v): int64 tensors that broadcast together -> float64; seeds as two halves of 32 bits."""
    w0, w1 = token_ids >> 2, positions & _LOW
    w2 = w3 = torch.zeros_like(w1)
    k0, k1 = seed_low, seed_high
    for _ in range(_ROUNDS):
        # Products of two 32-bit words fill 64 bits: a sign bit that they set is masked away with the upper half.
        p0, p1 = w0 * _M0, w2 * _M1
        w0, w1, w2, w3 = (p1 >> 32 & _LOW) ^ w1 ^ k0, p1 & _LOW, (p0 >> 32 & _LOW) ^ w3 ^ k1, p0 & _LOW
        k0, k1 = (k0 + _W0) & _LOW, (k1 + _W1) & _LOW
    lane = token_ids & 3
    bits = torch.where(lane < 2, torch.where(lane == 0, w0, w1), torch.where(lane == 2, w2, w3))
    return -torch.log(-torch.log((bits.double() + 0.5) / 2.0**32))
