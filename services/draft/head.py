"""The DART draft head (arXiv:2601.19278): one decoder layer over the target's features, plain torch.

It is written as steps over flat rows, because three callers lay rows out differently: proposing for many sessions,
filling caches, and training on many prefixes of one text. Each caller does its own attention between `queries`/
`keys_values` and `finish`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dartspec.services.draft.config import HeadConfig


class RMSNorm(nn.Module):
    """x / rms(x) * weight, the root mean square taken in float32 at least."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """[..., size] -> [..., size]."""
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        return self.weight * F.rms_norm(wide, (x.shape[-1],), eps=self.eps).to(x.dtype)


class SwiGLU(nn.Module):
    """down(silu(gate(x)) * up(x))."""

    def __init__(self, size: int, inner: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(size, inner, bias=False)
        self.up_proj = nn.Linear(size, inner, bias=False)
        self.down_proj = nn.Linear(inner, size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[rows, size] -> [rows, size]."""
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Projections(nn.Module):
    """Attention's four matrices; inputs are twice as wide as the residual stream."""

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        queries = config.num_attention_heads * config.head_dim
        keys = config.num_key_value_heads * config.head_dim
        self.q_proj = nn.Linear(2 * config.hidden_size, queries, bias=False)
        self.k_proj = nn.Linear(2 * config.hidden_size, keys, bias=False)
        self.v_proj = nn.Linear(2 * config.hidden_size, keys, bias=False)
        self.o_proj = nn.Linear(queries, config.hidden_size, bias=False)


class MidLayer(nn.Module):
    """The one decoder layer, and the vector that stands at MASK positions."""

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        self.hidden_norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = Projections(config)
        self.mlp = SwiGLU(config.hidden_size, config.intermediate_size)
        self.mask_rep = nn.Parameter(torch.zeros(2 * config.hidden_size))


class Transition(nn.Module):
    """A low-rank score of one draft token following another, added to the logit of the second.

    left [V_draft, r], right [r, V_draft]: the score of v after u is left[u] . right[:, v]. A new one scores 0.
    """

    def __init__(self, draft_vocab_size: int, rank: int) -> None:
        super().__init__()
        self.left = nn.Parameter(torch.zeros(draft_vocab_size, rank))
        self.right = nn.Parameter(torch.zeros(rank, draft_vocab_size))

    def block(self, candidates: Tensor) -> Tensor:
        """Scores [..., d-1, k, k] between candidates (draft ids) of neighbouring offsets, int64 [..., d, k].

        Entry [..., t, a, b], in float32 or better, is that of candidate b of offset t + 2 after candidate a of offset
        t + 1, counted from 1.
        """
        before, after = self.left[candidates[..., :-1, :]], self.right.T[candidates[..., 1:, :]]
        wide = torch.promote_types(before.dtype, torch.float32)
        return before.to(wide) @ after.to(wide).transpose(-1, -2)


@dataclass(frozen=True)
class Rotation:
    """RoPE factors of some rows: cos and sin, each [rows, 1, head_dim]."""

    cos: Tensor
    sin: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        """Rotate [rows, heads, head_dim] in the half-split layout of Llama checkpoints."""
        low, high = x.chunk(2, -1)
        return x * self.cos + torch.cat((-high, low), -1) * self.sin


class DraftHead(nn.Module):
    """Parameters under the names of public checkpoints, and the steps of the forward pass.

    `embedding` [V, H] and, when the checkpoint has no output matrix of its own, `lm_head` are the target's, shared
    and frozen. `lm_head_is_target` says so, and such a matrix is not saved.
    """

    d2t: Tensor
    t2d: Tensor
    embedding: Tensor

    def __init__(self, config: HeadConfig, embedding: Tensor) -> None:
        super().__init__()
        self.config = config
        self.fc = nn.Linear(config.feature_width, config.hidden_size, bias=False)
        self.midlayer = MidLayer(config)
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.lm_head = nn.Linear(config.hidden_size, config.draft_vocab_size, bias=False)
        self.lm_head_is_target = False
        self.transition = (
            Transition(config.draft_vocab_size, config.transition_rank) if config.transition_rank else None
        )
        self.register_buffer("d2t", torch.zeros(config.draft_vocab_size, dtype=torch.int64))
        t2d = torch.zeros(config.vocab_size, dtype=torch.bool)
        t2d[: config.draft_vocab_size] = True
        self.register_buffer("t2d", t2d)
        self.register_buffer("embedding", embedding, persistent=False)
        # Not a buffer: a head cast to bfloat16 keeps its angles in float32.
        self.inverse_frequencies, self.rope_amplitude = _inverse_frequencies(config)

    def target_ids(self) -> Tensor:
        """Target id of each draft id, int64 [V_draft]."""
        return torch.arange(self.config.draft_vocab_size, device=self.d2t.device) + self.d2t

    def rotation(self, positions: Tensor) -> Rotation:
        """RoPE factors at absolute positions, int64 [rows]; angles in float32 whatever the head's dtype."""
        if self.inverse_frequencies.device != positions.device:
            self.inverse_frequencies = self.inverse_frequencies.to(positions.device)
        angles = positions[:, None].float() * self.inverse_frequencies
        angles = torch.cat((angles, angles), -1)[:, None]
        dtype = self.fc.weight.dtype
        return Rotation((angles.cos() * self.rope_amplitude).to(dtype), (angles.sin() * self.rope_amplitude).to(dtype))

    def prefix_rows(self, features: Tensor, next_tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Layer input [rows, 2H] and residual [rows, H] of prefix positions.

        features [rows, feature width] at positions j, next_tokens int64 [rows], the tokens x[j + 1].
        """
        residual = self.fc(features.to(self.fc.weight.dtype))
        embedded = F.embedding(next_tokens, self.embedding).to(residual.dtype)
        layer = self.midlayer
        return torch.cat((layer.input_layernorm(embedded), layer.hidden_norm(residual)), -1), residual

    def mask_rows(self, rows: int) -> tuple[Tensor, Tensor]:
        """Layer input [rows, 2H] and residual [rows, H] of MASK positions, the same vector in each."""
        mask = self.midlayer.mask_rep.expand(rows, -1)
        return mask, mask[:, : self.config.hidden_size]

    def queries(self, layer_input: Tensor, rotation: Rotation) -> Tensor:
        """[rows, heads, head_dim], rotated."""
        projected = self.midlayer.self_attn.q_proj(layer_input)
        return rotation(projected.unflatten(-1, (self.config.num_attention_heads, self.config.head_dim)))

    def keys_values(self, layer_input: Tensor, rotation: Rotation) -> tuple[Tensor, Tensor]:
        """Keys, rotated, and values, each [rows, kv_heads, head_dim]."""
        shape = (self.config.num_key_value_heads, self.config.head_dim)
        keys = self.midlayer.self_attn.k_proj(layer_input).unflatten(-1, shape)
        values = self.midlayer.self_attn.v_proj(layer_input).unflatten(-1, shape)
        return rotation(keys), values

    def finish(self, mixed: Tensor, residual: Tensor) -> Tensor:
        """From attention's output [rows, heads * head_dim] to the hidden state after the first final norm [rows, H]."""
        layer = self.midlayer
        stream = residual + layer.self_attn.o_proj(mixed)
        return self.norm(stream + layer.mlp(layer.post_attention_layernorm(stream)))

    def logits(self, hidden: Tensor) -> Tensor:
        """Draft-vocabulary logits [rows, V_draft]; the final norm is applied a second time, as the public heads do."""
        return self.lm_head(self.norm(hidden))


def _inverse_frequencies(config: HeadConfig) -> tuple[Tensor, float]:
    """RoPE frequencies [head_dim / 2] in float32, and the factor on cos and sin (1 unless the scaling sets one)."""
    if config.rope_scaling is None:
        exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
        return 1.0 / config.rope_theta**exponents, 1.0
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    parameters: dict[str, Any] = {**config.rope_scaling, "rope_theta": config.rope_theta}
    rotary = LlamaRotaryEmbedding(
        LlamaConfig(
            hidden_size=config.hidden_size,
            num_attention_heads=config.num_attention_heads,
            head_dim=config.head_dim,
            max_position_embeddings=config.max_position_embeddings,
            rope_parameters=parameters,
        )
    )
    return rotary.inv_freq.float(), float(rotary.attention_scaling)
