"""What the draft side needs to know of a target, and the fingerprint that ties a head to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dartspec.services.common.fingerprint import json_digest
from dartspec.services.draft.config import default_feature_layers

_SAMPLED_ROWS = 64


@dataclass(frozen=True)
class TargetInfo:
    """A target as its head sees it; tensors are shared with the model, never copied.

    embedding: [V, H]. lm_head: [V, H], the same tensor when tied. norm_weight: [H], the final norm's.
    feature_layers: decoder layers, from 0, whose outputs are the features by default.
    """

    name: str
    fingerprint: str
    architecture: str
    num_layers: int
    hidden_size: int
    vocab_size: int
    max_positions: int
    embedding: Tensor
    lm_head: Tensor
    norm_weight: Tensor

    @property
    def feature_layers(self) -> tuple[int, int, int]:
        """Default feature layers. Raises FailedPrecondition below 7 layers."""
        return default_feature_layers(self.num_layers)

    @classmethod
    def from_model(cls, model: Any, name: str = "") -> TargetInfo:
        """From a transformers causal language model of the Llama, Qwen2 or Qwen3 family."""
        config = model.config
        embedding = model.get_input_embeddings().weight.detach()
        norm_weight = model.model.norm.weight.detach()
        return cls(
            name=name or getattr(config, "_name_or_path", "") or "target",
            fingerprint=target_fingerprint(config, embedding, norm_weight),
            architecture=config.architectures[0] if config.architectures else type(model).__name__,
            num_layers=config.num_hidden_layers,
            hidden_size=config.hidden_size,
            vocab_size=embedding.shape[0],
            max_positions=config.max_position_embeddings,
            embedding=embedding,
            lm_head=model.get_output_embeddings().weight.detach(),
            norm_weight=norm_weight,
        )


def target_fingerprint(config: Any, embedding: Tensor, norm_weight: Tensor) -> str:
    """Lower-case hex digest that names a target: its dimensions, 64 evenly spaced embedding rows and the final norm.

    The sampled weights are rounded to bfloat16 first, so a float32 and a bfloat16 load of one model agree.
    """
    vocab = embedding.shape[0]
    rows = torch.arange(_SAMPLED_ROWS, device=embedding.device) * vocab // _SAMPLED_ROWS
    dimensions = {
        "model_type": config.model_type,
        "hidden_size": config.hidden_size,
        "num_hidden_layers": config.num_hidden_layers,
        "num_attention_heads": config.num_attention_heads,
        "num_key_value_heads": getattr(config, "num_key_value_heads", None) or config.num_attention_heads,
        "intermediate_size": config.intermediate_size,
        "vocab_size": vocab,
    }
    return json_digest(dimensions, _bfloat16_bytes(embedding[rows]), _bfloat16_bytes(norm_weight))


def _bfloat16_bytes(values: Tensor) -> bytes:
    return values.detach().to("cpu", torch.bfloat16).contiguous().view(torch.int16).numpy().astype("<i2").tobytes()
