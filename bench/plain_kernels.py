"""The mathematics of `services/verifier/kernels.py` in plain torch, from the same static inputs: what its results are
compared with, and what runs in its place on a processor. Slow, and not for graphs: it asks the host where slots lie.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from dartspec.services.verifier.kv_cache import SLOT_BLOCK
from dartspec.services.verifier.static_inputs import UNIT_BYTES, Inputs
from dartspec.services.verifier.target import Layer, Target, rotate


class PlainKernels:
    """For one target, whose pool holds the sessions' slots."""

    def __init__(self, target: Target) -> None:
        self._target = target

    def add_norm(
        self, x: torch.Tensor, delta: torch.Tensor | None, weight: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """x and delta [rows, H] -> their sum, and that normed and weighted."""
        total = x if delta is None else x + delta
        return total, self._norm(total, weight)

    def gate(self, gate_up: torch.Tensor) -> torch.Tensor:
        """gate_up [rows, 2 I] -> silu of the first half times the second, [rows, I]."""
        gate, up = gate_up.chunk(2, dim=-1)
        return F.silu(gate) * up

    def rotate_store(self, inputs: Inputs, index: int, layer: Layer, qkv: torch.Tensor) -> torch.Tensor:
        """qkv [rows, (heads + 2 kv_heads) head_dim] -> rotated queries; keys and values go to their slots."""
        c = self._target.config
        cos, sin = (table[inputs.positions][:, None] for table in self._target.rope)
        parts = qkv.view(len(qkv), c.heads + 2 * c.kv_heads, c.head_dim)
        q, k, v = parts.split((c.heads, c.kv_heads, c.kv_heads), dim=1)
        if layer.q_norm is not None and layer.k_norm is not None:
            q, k = self._norm(q, layer.q_norm), self._norm(k, layer.k_norm)
        k = rotate(k, cos, sin)
        slots = self._slots(inputs)
        for row, (place, _, _, position, _) in enumerate(inputs.rows.tolist()):
            if position >= 0:
                slots[place][index, 0, :, position] = k[row]
                slots[place][index, 1, :, position] = v[row]
        return rotate(q, cos, sin)

    def attend(self, inputs: Inputs, index: int, queries: torch.Tensor) -> torch.Tensor:
        """queries [rows, heads, head_dim] -> [rows, heads head_dim]; rows of padding are zero."""
        c = self._target.config
        out = torch.zeros_like(queries)
        slots = self._slots(inputs)
        visible = inputs.visible.tolist()
        for first, count, place, _, _, length, offset in inputs.items.tolist():
            if not count:
                continue
            end = length + offset + count
            data = slots[place][index, :, :, :end].repeat_interleave(c.heads // c.kv_heads, dim=1)
            for row in range(first, first + count):
                sees = [j < length or (visible[row][(j - length) // 64] >> (j - length) % 64) & 1 for j in range(end)]
                mask = torch.tensor(sees, dtype=torch.bool, device=queries.device)
                mixed = F.scaled_dot_product_attention(queries[row][:, None], data[0], data[1], attn_mask=mask[None])
                out[row] = mixed[:, 0]
        return out.flatten(1)

    def _slots(self, inputs: Inputs) -> dict[int, torch.Tensor]:
        """Slots of the pool by their distance from the anchor: [layers, 2, kv_heads, capacity, head_dim]."""
        anchor = inputs.anchor.data_ptr()
        # A slot may begin at any unit of a region; that it ends sooner than the region does not matter here.
        slots = [
            region.data[:, :, :, start:]
            for region in self._target.pool.regions
            for start in range(0, region.positions, SLOT_BLOCK)
        ]
        return {(slot.data_ptr() - anchor) // UNIT_BYTES: slot for slot in slots}

    def _norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        y = F.rms_norm(x.float(), (x.shape[-1],), eps=self._target.config.norm_epsilon)
        return weight * y.to(x.dtype)
