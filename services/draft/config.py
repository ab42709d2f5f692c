"""The draft head's configuration: the fields of public `config.json` files and our additions."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from dartspec.services.common.errors import FailedPrecondition, NotFound

_SCALINGS = ("default", "linear", "llama3", "yarn")
_POSITIVE = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "max_position_embeddings",
    "draft_vocab_size",
    "target_hidden_size",
)
# Our additions, at the values that public heads have; such a value is not written.
_LEFT_OUT: Mapping[str, Any] = {"shift": True, "transition_rank": 0, "attention_window": 0}


@dataclass(frozen=True)
class HeadConfig:
    """Shape of a head (arXiv:2601.19278; names as in public checkpoints).

    vocab_size: V of the target. hidden_size: H, equal to the target's, because the layer input holds its embeddings.
    draft_length: MASK positions a round, d - 1. draft_vocab_size: rows of the output matrix. rope_scaling: as in
    transformers configurations, or None. target_fingerprint: of the target this head was trained for, "" when unknown
    (public heads). feature_layers: decoder layers (from 0) whose outputs are the features; () means the default
    (1, N/2 - 1, N - 4). accepted_per_round: draft tokens that a round accepts, as measured when the head was made; None
    when the card does not say. shift: whether position j is fed the embedding of x[j+1]; a head without it, of x[j], is
    for comparison only and cannot propose. transition_rank: rank of the transition score, 0 for none.
    attention_window: positions of the prefix that a draft looks at, the last ones; 0: all. A head learns from texts far
    shorter than a target's context, and what it never saw, it cannot use.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    max_position_embeddings: int
    rms_norm_eps: float
    rope_theta: float
    draft_length: int
    draft_vocab_size: int
    target_hidden_size: int
    rope_scaling: Mapping[str, Any] | None = None
    target_fingerprint: str = ""
    feature_layers: tuple[int, ...] = ()
    accepted_per_round: float | None = None
    shift: bool = True
    transition_rank: int = 0
    attention_window: int = 0

    def __post_init__(self) -> None:
        for name in _POSITIVE:
            if getattr(self, name) < 1:
                raise FailedPrecondition(f"draft head config: {name} must be at least 1, got {getattr(self, name)}")
        if self.draft_length < 0:
            raise FailedPrecondition(f"draft head config: draft_length must not be negative, got {self.draft_length}")
        if self.num_attention_heads % self.num_key_value_heads:
            raise FailedPrecondition(
                f"draft head config: num_attention_heads ({self.num_attention_heads}) must be a multiple of "
                f"num_key_value_heads ({self.num_key_value_heads})"
            )
        if self.head_dim % 2:
            raise FailedPrecondition(f"draft head config: head_dim must be even for RoPE, got {self.head_dim}")
        if self.draft_vocab_size > self.vocab_size:
            raise FailedPrecondition(
                f"draft head config: draft_vocab_size ({self.draft_vocab_size}) exceeds vocab_size ({self.vocab_size})"
            )
        scaling = (self.rope_scaling or {}).get("rope_type", "default")
        if scaling not in _SCALINGS:
            raise FailedPrecondition(
                f"draft head config: rope_scaling {scaling!r} is not supported; use one of {_SCALINGS}"
            )
        if len(set(self.feature_layers)) != len(self.feature_layers):
            raise FailedPrecondition(f"draft head config: feature_layers names a layer twice: {self.feature_layers}")
        if self.attention_window < 0:
            raise FailedPrecondition(
                f"draft head config: attention_window must not be negative, got {self.attention_window}"
            )
        if not 0 <= self.transition_rank <= 4096:
            raise FailedPrecondition(
                f"draft head config: transition_rank must be between 0 and 4096, got {self.transition_rank}"
            )

    @property
    def depth(self) -> int:
        """Offsets predicted a round: d = draft_length + 1."""
        return self.draft_length + 1

    @property
    def feature_width(self) -> int:
        """Values of a position's features: a hidden state of the target for each feature layer."""
        return (len(self.feature_layers) or 3) * self.target_hidden_size

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> HeadConfig:
        """From a parsed `config.json`; fields of the checkpoint's other users are ignored."""
        known = {field.name for field in fields(cls)}
        given = {name: value for name, value in values.items() if name in known}
        rope = values.get("rope_parameters") or values.get("rope_scaling")
        if rope:
            given["rope_theta"] = rope.get("rope_theta", values.get("rope_theta", 10000.0))
            kind = rope.get("rope_type", rope.get("type", "default"))
            given["rope_scaling"] = None if kind == "default" else {**rope, "rope_type": kind}
        given.setdefault("rope_theta", 10000.0)
        given.setdefault("rms_norm_eps", 1e-6)
        given.setdefault("draft_vocab_size", given.get("vocab_size"))
        given.setdefault("num_key_value_heads", given.get("num_attention_heads"))
        given.setdefault("target_hidden_size", given.get("hidden_size"))
        given["feature_layers"] = tuple(given.get("feature_layers") or ())
        if given.get("head_dim") is None and given.get("hidden_size") and given.get("num_attention_heads"):
            given["head_dim"] = given["hidden_size"] // given["num_attention_heads"]
        optional = ("rope_scaling", "target_fingerprint", "accepted_per_round", *_LEFT_OUT)
        missing = sorted(name for name in known if given.get(name) is None and name not in optional)
        if missing:
            raise FailedPrecondition(f"draft head config.json lacks {', '.join(missing)}")
        return cls(**given)

    @classmethod
    def from_file(cls, path: Path) -> HeadConfig:
        """From `config.json`; a missing or unreadable file is an error that names it."""
        try:
            values = json.loads(path.read_text())
        except FileNotFoundError as error:
            raise NotFound(
                f"draft head: {path} does not exist; a head is a directory with config.json and model.safetensors"
            ) from error
        except (OSError, ValueError) as error:
            raise FailedPrecondition(f"draft head: {path} cannot be read: {error}") from error
        if not isinstance(values, dict):
            raise FailedPrecondition(f"draft head: {path} does not hold a JSON object")
        return cls.from_json(values)

    def to_json(self) -> dict[str, Any]:
        """What `config.json` holds."""
        values = asdict(self)
        values["feature_layers"] = list(self.feature_layers)
        return {
            name: value
            for name, value in values.items()
            if value not in (None, "", []) and _LEFT_OUT.get(name, self) != value
        }


def default_feature_layers(num_layers: int) -> tuple[int, int, int]:
    """Decoder layers whose outputs feed the head: 1, N/2 - 1 and N - 4, counted from 0.

    Raises FailedPrecondition below 7 layers, where the three would not be distinct and ordered.
    """
    if num_layers < 7:
        raise FailedPrecondition(f"a draft head needs a target of at least 7 decoder layers, this one has {num_layers}")
    return (1, num_layers // 2 - 1, num_layers - 4)
