"""Which targets this verifier can run, and the few numbers that describe one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dartspec.services.common.errors import FailedPrecondition

FAMILIES = ("llama", "qwen2", "qwen3")
# Rope types whose frequencies do not depend on the length of the sequence.
ROPE_TYPES = ("default", "linear", "llama3", "yarn")


@dataclass(frozen=True)
class TargetConfig:
    """Shape of a dense decoder. N layers, hidden size H, vocabulary V."""

    family: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab_size: int
    norm_epsilon: float
    max_positions: int
    qk_norm: bool
    eos_token_ids: tuple[int, ...]


def target_config(config: Any, generation_config: Any) -> TargetConfig:
    """Read a transformers config. Raises FailedPrecondition naming what is not supported."""
    family = config.model_type
    if family not in FAMILIES:
        raise FailedPrecondition(
            f"model: architecture {family!r} is not supported; supported are {', '.join(FAMILIES)}", field="model"
        )
    _require(config, "hidden_act", ("silu",))
    _require(config, "use_sliding_window", (False, None))
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type", "default") not in ROPE_TYPES:
        raise FailedPrecondition(
            f"model: rope type {rope['rope_type']!r} is not supported; supported are {', '.join(ROPE_TYPES)}",
            field="model",
        )
    eos = generation_config.eos_token_id if generation_config is not None else None
    eos = config.eos_token_id if eos is None else eos
    eos_ids = () if eos is None else tuple(eos) if isinstance(eos, list | tuple) else (eos,)
    return TargetConfig(
        family=family,
        layers=config.num_hidden_layers,
        hidden=config.hidden_size,
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
        intermediate=config.intermediate_size,
        vocab_size=config.vocab_size,
        norm_epsilon=config.rms_norm_eps,
        max_positions=config.max_position_embeddings,
        qk_norm=family == "qwen3",
        eos_token_ids=eos_ids,
    )


def _require(config: Any, name: str, allowed: tuple[Any, ...]) -> None:
    value = getattr(config, name, allowed[0])
    if value not in allowed:
        raise FailedPrecondition(
            f"model: {name}={value!r} in its config is not supported, only {allowed[0]!r}", field="model"
        )
