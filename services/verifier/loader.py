"""From a transformers model to a `Target`. The only file that names transformers' model classes."""

from __future__ import annotations

import gc
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from dartspec.services.common.errors import FailedPrecondition
from dartspec.services.draft.config import default_feature_layers
from dartspec.services.draft.target_info import TargetInfo
from dartspec.services.verifier.compiled_passes import compiled
from dartspec.services.verifier.linear import ONE_SHAPE, Matrix
from dartspec.services.verifier.target import Layer, Target
from dartspec.services.verifier.target_config import TargetConfig, target_config

log = logging.getLogger(__name__)

# Below this many layers the three feature layers would not be distinct, and no head fits.
MIN_LAYERS = 7


@dataclass(frozen=True)
class LoadedTarget:
    """A target in two views of the same tensors: to run it, and as its draft head sees it."""

    target: Target
    info: TargetInfo
    default_sampling: Mapping[str, Any]  # what the generation config says about sampling, by transformers' names


def load_target(
    directory: Path,
    name: str,
    dtype: torch.dtype,
    device: torch.device,
    context_length: int = 0,
) -> LoadedTarget:
    """Load a model directory. ``name`` is what users call the model. ``context_length`` 0 takes the model's own limit.

    Raises FailedPrecondition for an unsupported architecture (before weights are read) or unreadable weights.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    try:
        config = AutoConfig.from_pretrained(directory)
        target_config(config, None)
        model: Any = AutoModelForCausalLM.from_pretrained(directory, dtype=dtype)
    except (OSError, ValueError, KeyError) as error:
        raise FailedPrecondition(f"model: cannot load {str(directory)!r}: {error}", field="model") from error
    return target_from_model(model.to(device).eval(), name, context_length)


def target_from_model(model: Any, name: str, context_length: int = 0, invariant: bool = False) -> LoadedTarget:
    """A `Target` of a transformers model, which gives its weights up layer by layer and is not usable afterwards."""
    config = target_config(model.config, getattr(model, "generation_config", None))
    positions = context_length or config.max_positions
    if positions > config.max_positions:
        raise FailedPrecondition(
            f"context_length: the model has {config.max_positions} positions, {positions} wanted",
            field="context_length",
        )
    info = TargetInfo.from_model(model, name)
    rope = _rope_tables(model, config, positions)
    body = model.model
    layers = []
    while len(body.layers):
        layers.append(_take_layer(body.layers[0]))
        del body.layers[0]
    target = Target(
        config,
        body.embed_tokens.weight.detach(),
        layers,
        body.norm.weight.detach(),
        Matrix(model.lm_head.weight.detach()),
        rope,
        default_feature_layers(config.layers) if config.layers >= MIN_LAYERS else (),
        ONE_SHAPE if invariant else None,
    )
    gc.collect()
    if target.device.type == "cpu":
        target.fast = compiled(target)
    return LoadedTarget(target, info, _default_sampling(getattr(model, "generation_config", None)))


def _default_sampling(generation_config: Any) -> dict[str, Any]:
    names = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
    if generation_config is None:
        return {}
    # What the model's authors wrote, not the library's own defaults.
    written = generation_config.to_diff_dict()
    return {name: written[name] for name in names if written.get(name) is not None}


def _take_layer(layer: Any) -> Layer:
    attention, mlp = layer.self_attn, layer.mlp
    projections = (attention.q_proj, attention.k_proj, attention.v_proj)
    return Layer(
        input_norm=layer.input_layernorm.weight.detach(),
        qkv=Matrix(_stack([p.weight for p in projections])),
        qkv_bias=_stack([p.bias for p in projections]) if attention.q_proj.bias is not None else None,
        q_norm=attention.q_norm.weight.detach() if hasattr(attention, "q_norm") else None,
        k_norm=attention.k_norm.weight.detach() if hasattr(attention, "k_norm") else None,
        out=Matrix(attention.o_proj.weight.detach()),
        out_bias=_detached(attention.o_proj.bias),
        mlp_norm=layer.post_attention_layernorm.weight.detach(),
        gate_up=Matrix(_stack([mlp.gate_proj.weight, mlp.up_proj.weight])),
        gate_up_bias=_stack([mlp.gate_proj.bias, mlp.up_proj.bias]) if mlp.gate_proj.bias is not None else None,
        down=Matrix(mlp.down_proj.weight.detach()),
        down_bias=_detached(mlp.down_proj.bias),
    )


def _stack(parts: list[torch.Tensor]) -> torch.Tensor:
    return torch.cat([part.detach() for part in parts])


def _detached(tensor: torch.Tensor | None) -> torch.Tensor | None:
    return None if tensor is None else tensor.detach()


@torch.inference_mode()
def _rope_tables(model: Any, config: TargetConfig, positions: int) -> tuple[torch.Tensor, torch.Tensor]:
    weight = model.model.embed_tokens.weight
    ids = torch.arange(positions, device=weight.device)[None]
    cos, sin = model.model.rotary_emb(weight[:1], ids)
    if cos.shape[-1] != config.head_dim:
        raise FailedPrecondition(
            f"model: rotary size {cos.shape[-1]} differs from head size {config.head_dim}", field="model"
        )
    return cos[0], sin[0]
