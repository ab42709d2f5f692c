"""The target's forward pass: the weights of a transformers model, run over our own KV cache.

Written out so that rows of one pass can be a prefill chunk, a tree or a single token, and so that the numerics can be
pinned down (`linear.py`). Logits equal transformers' own to rounding; tests hold this for every family.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from dartspec.services.verifier.attention import attend, key_count, row_count, tree_mask
from dartspec.services.verifier.kv_cache import KVCache
from dartspec.services.verifier.linear import Matrix, linear
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
        row_block: int = 0,
    ) -> None:
        self.config = config
        self.embedding = embedding  # [V, H]
        self.layers = layers
        self.norm = norm  # [H]
        self.lm_head = lm_head  # [V, H]
        self._cos, self._sin = rope  # [positions, head_dim]
        self.feature_layers = feature_layers  # decoder layers, counted from 0
        self.row_block = row_block  # see `linear.py`; 0: rows may depend on their company

    @property
    def invariant(self) -> bool:
        """Rows do not depend on what shares their pass."""
        return self.row_block > 0

    @property
    def dtype(self) -> torch.dtype:
        """Of weights, cache and logits."""
        return self.embedding.dtype

    @property
    def device(self) -> torch.device:
        """Where everything is."""
        return self.embedding.device

    def new_cache(self, capacity: int) -> KVCache:
        """An empty cache for one session."""
        c = self.config
        return KVCache(c.layers, c.kv_heads, c.head_dim, capacity, self.dtype, self.device)

    @torch.inference_mode()
    def forward(
        self, cache: KVCache, token_ids: list[int], depth: NDArray[np.int32], visible: NDArray[np.bool_]
    ) -> Pass:
        """Run rows behind the cache's committed prefix; writes their keys and values, commits nothing.

        token_ids: one a row. depth: position of each row counted from the prefix's end, int32 [rows].
        visible: which rows a row attends to besides the prefix, bool [rows, rows].
        """
        rows = len(token_ids)
        keys = key_count(cache.length, rows, self.invariant)
        mask = tree_mask(cache.length, visible, keys, row_count(rows, self.invariant), like=self.norm)
        position = torch.from_numpy(depth.astype(np.int64) + cache.length).to(self.device)
        cos, sin = self._cos[position], self._sin[position]  # [rows, head_dim]
        x = F.embedding(torch.tensor(token_ids, device=self.device), self.embedding)  # [rows, H]
        features: dict[int, torch.Tensor] = {}
        for index, layer in enumerate(self.layers):
            x = x + self._attention(layer, index, cache, self._norm(x, layer.input_norm), cos, sin, keys, mask)
            gate, up = self._linear(self._norm(x, layer.mlp_norm), layer.gate_up, layer.gate_up_bias).chunk(2, dim=-1)
            x = x + self._linear(F.silu(gate) * up, layer.down, layer.down_bias)
            if index in self.feature_layers:
                features[index] = x
        outputs = [features[index] for index in self.feature_layers]
        return Pass(x, torch.cat(outputs, dim=-1) if outputs else x[:, :0])

    @torch.inference_mode()
    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """hidden [rows, H] before the final norm -> logits [rows, V] in the target's dtype."""
        return self._linear(self._norm(hidden, self.norm), self.lm_head, None)

    def _attention(
        self,
        layer: Layer,
        index: int,
        cache: KVCache,
        x: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        keys: int,
        mask: torch.Tensor | None,
    ) -> torch.Tensor:
        c = self.config
        rows = x.shape[0]
        qkv = self._linear(x, layer.qkv, layer.qkv_bias).view(rows, c.heads + 2 * c.kv_heads, c.head_dim)
        q, k, v = qkv.transpose(0, 1).split((c.heads, c.kv_heads, c.kv_heads))  # [heads, rows, head_dim] each
        if layer.q_norm is not None and layer.k_norm is not None:
            q, k = self._norm(q, layer.q_norm), self._norm(k, layer.k_norm)
        cache.write(index, rotate(k, cos, sin), v)
        all_keys, all_values = cache.read(index, keys)
        queries = rotate(q, cos, sin)
        if spare := row_count(rows, self.invariant) - rows:
            queries = F.pad(queries, (0, 0, 0, spare))
        mixed = attend(queries, all_keys, all_values, mask, c.head_dim**-0.5)[:, :rows]
        return self._linear(mixed.transpose(0, 1).reshape(rows, -1), layer.out, layer.out_bias)

    def _norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        # In float32 and rounded before the weight is applied, as transformers does it.
        y = F.rms_norm(x.float(), (x.shape[-1],), eps=self.config.norm_epsilon)
        return weight * y.to(x.dtype)

    def _linear(self, x: torch.Tensor, weight: Matrix, bias: torch.Tensor | None) -> torch.Tensor:
        return linear(x, weight, bias, self.row_block)


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary position embedding, halves paired: x [heads, rows, head_dim], cos and sin [rows, head_dim]."""
    low, high = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-high, low), dim=-1) * sin
