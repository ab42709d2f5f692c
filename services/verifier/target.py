"""The target's forward pass: the weights of a transformers model, run over our own KV cache.

Written out so that one pass can hold prefill chunks, trees and single tokens of many sessions, and so that the
numerics can be pinned down (`linear.py`). Logits equal transformers' own to rounding; tests hold this for every family.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
import torch.nn.functional as F

from dartspec.services.verifier.attention import Plan, Segment, attend, plan
from dartspec.services.verifier.kv_cache import KVCache, KVPool
from dartspec.services.verifier.linear import TARGET_STEPS, Matrix, Rows, kernel_rows, linear, pad_rows
from dartspec.services.verifier.packing import to_device
from dartspec.services.verifier.target_config import TargetConfig


@dataclass(frozen=True)
class Layer:
    """Weights of one decoder layer. The query, key and value projections are stacked, and so are gate and up."""

    input_norm: torch.Tensor  # [H]
    qkv: Matrix  # [(heads + 2 kv_heads) head_dim, H]
    qkv_bias: torch.Tensor | None
    q_norm: torch.Tensor | None  # [head_dim]
    k_norm: torch.Tensor | None  # [head_dim]
    out: Matrix  # [H, heads head_dim]
    out_bias: torch.Tensor | None
    mlp_norm: torch.Tensor  # [H]
    gate_up: Matrix  # [2 I, H]
    gate_up_bias: torch.Tensor | None
    down: Matrix  # [H, I]
    down_bias: torch.Tensor | None


@dataclass(frozen=True)
class Pass:
    """What one pass computed. Row 0 is the first of its tokens."""

    hidden: torch.Tensor  # [rows, H], before the final norm
    features: torch.Tensor  # [rows, layers H], outputs of the feature layers side by side; what the draft head reads


class FastPasses(Protocol):
    """Another way to the same passes: CUDA graphs (`graphs.py`), or compiled loops on processors."""

    def run(self, segments: Sequence[Segment]) -> Pass | None:
        """As `Target.forward`; None when this way does not serve."""


class Target:
    """A dense decoder model. Stateless but for its weights; the sessions' state is in their KVCache."""

    def __init__(
        self,
        config: TargetConfig,
        embedding: torch.Tensor,
        layers: list[Layer],
        norm: torch.Tensor,
        lm_head: Matrix,
        rope: tuple[torch.Tensor, torch.Tensor],
        feature_layers: tuple[int, ...] = (),
        rows: Rows | None = None,
    ) -> None:
        self.config = config
        self.embedding = embedding  # [V, H]
        self.layers = layers
        self.norm = norm  # [H]
        self.lm_head = lm_head  # [V, H]
        self._cos, self._sin = rope  # [positions, head_dim]
        self.feature_layers = feature_layers  # decoder layers, counted from 0
        self.rows = rows  # of products, see `linear.py`; None: rows may depend on their company
        self.pool = KVPool(config.layers, config.kv_heads, config.head_dim, like=norm)
        # Plans are made on the host and sent in one copy; this has the type and the device of what is in them.
        self._plan_like = torch.empty(0, dtype=norm.dtype)
        self.fast: FastPasses | None = None

    @property
    def invariant(self) -> bool:
        """Rows do not depend on what shares their pass."""
        return self.rows is not None

    @property
    def dtype(self) -> torch.dtype:
        """Of weights, cache and logits."""
        return self.embedding.dtype

    @property
    def device(self) -> torch.device:
        """Where everything is."""
        return self.embedding.device

    @property
    def rope(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines and sines, [positions, head_dim] each."""
        return self._cos, self._sin

    def prepare(self, max_sessions: int, max_nodes: int) -> None:
        """Capture CUDA graphs of common passes, once the target is as it stays; elsewhere there is nothing to do."""
        if self.device.type == "cuda":
            from dartspec.services.verifier.graphs import captured

            with torch.cuda.device(self.device):
                self.fast = captured(self, max_sessions, max_nodes)

    def new_cache(self, positions: int) -> KVCache:
        """An empty cache for one session of at most so many positions."""
        return self.pool.new_cache(positions)

    def forward(self, segments: Sequence[Segment]) -> Pass:
        """Run the rows of all segments; writes their keys and values behind the committed ones, commits nothing."""
        done = self.fast.run(segments) if self.fast is not None else None
        return self.eager(segments) if done is None else done

    @torch.inference_mode()
    def eager(self, segments: Sequence[Segment]) -> Pass:
        """`forward` in plain torch."""
        positions = np.concatenate([segment.depth.astype(np.int64) + segment.cache.length for segment in segments])
        token_ids = torch.tensor([token for segment in segments for token in segment.token_ids])
        made = (plan(segments, self.invariant, like=self._plan_like), torch.from_numpy(positions), token_ids)
        attention, position, token_ids = to_device(made, self.device)
        cos, sin = self._cos[position][:, None], self._sin[position][:, None]  # [rows, 1, head_dim]
        x = F.embedding(token_ids, self.embedding)  # [rows, H]
        features: dict[int, torch.Tensor] = {}
        for index, layer in enumerate(self.layers):
            x = x + self._attention(layer, index, attention, self._norm(x, layer.input_norm), cos, sin)
            gate, up = self._linear(self._norm(x, layer.mlp_norm), layer.gate_up, layer.gate_up_bias).chunk(2, dim=-1)
            x = x + self._linear(F.silu(gate) * up, layer.down, layer.down_bias)
            if index in self.feature_layers:
                features[index] = x
        outputs = [features[index] for index in self.feature_layers]
        return Pass(x, torch.cat(outputs, dim=-1) if outputs else x[:, :0])

    @torch.inference_mode()
    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """hidden [rows, H] before the final norm -> logits [rows, V] in the target's dtype."""
        taken = pad_rows(hidden, self.rows_to_take(len(hidden)))
        return self._linear(self._norm(taken, self.norm), self.lm_head, None)[: len(hidden)]

    def rows_to_take(self, rows: int) -> int:
        """How many rows products shall have instead, so that a processor has few kernels to compile."""
        return kernel_rows(rows, TARGET_STEPS) if self.device.type == "cpu" and not self.invariant else rows

    def host_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """`logits` on the host; a device copies them into memory that it reaches directly."""
        logits = self.logits(hidden)
        if logits.device.type != "cuda":
            return logits
        host = torch.empty(logits.shape, dtype=logits.dtype, pin_memory=True)
        host.copy_(logits, non_blocking=True)
        torch.cuda.current_stream(logits.device).synchronize()
        return host

    def _attention(
        self, layer: Layer, index: int, attention: Plan, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
    ) -> torch.Tensor:
        c = self.config
        qkv = self._linear(x, layer.qkv, layer.qkv_bias).view(x.shape[0], c.heads + 2 * c.kv_heads, c.head_dim)
        q, k, v = qkv.split((c.heads, c.kv_heads, c.kv_heads), dim=1)  # [rows, heads, head_dim] each
        if layer.q_norm is not None and layer.k_norm is not None:
            q, k = self._norm(q, layer.q_norm), self._norm(k, layer.k_norm)
        mixed = attend(attention, index, rotate(q, cos, sin), rotate(k, cos, sin), v, c.head_dim**-0.5)
        return self._linear(mixed, layer.out, layer.out_bias)

    def _norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        # In float32 and rounded before the weight is applied, as transformers does it.
        y = F.rms_norm(x.float(), (x.shape[-1],), eps=self.config.norm_epsilon)
        return weight * y.to(x.dtype)

    def _linear(self, x: torch.Tensor, weight: Matrix, bias: torch.Tensor | None) -> torch.Tensor:
        return linear(x, weight, bias, self.rows)


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary position embedding, halves paired: x [rows, heads, head_dim], cos and sin [rows, 1, head_dim]."""
    low, high = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-high, low), dim=-1) * sin
