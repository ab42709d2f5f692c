"""A tiny random target and head: 8 layers, H = 32, V = 97, d = 5."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from dartspec.services.draft.config import HeadConfig
from dartspec.services.draft.head import DraftHead
from dartspec.services.draft.target_info import TargetInfo

HIDDEN, VOCAB = 32, 97


@pytest.fixture
def target() -> TargetInfo:
    generator = torch.Generator().manual_seed(3)
    return TargetInfo(
        name="tiny",
        fingerprint="a" * 32,
        architecture="LlamaForCausalLM",
        num_layers=8,
        hidden_size=HIDDEN,
        vocab_size=VOCAB,
        max_positions=512,
        embedding=torch.randn(VOCAB, HIDDEN, generator=generator),
        lm_head=torch.randn(VOCAB, HIDDEN, generator=generator),
        norm_weight=torch.ones(HIDDEN),
    )


@pytest.fixture
def make_config() -> Callable[..., HeadConfig]:
    def make(**changes: Any) -> HeadConfig:
        values: dict[str, Any] = {
            "vocab_size": VOCAB,
            "hidden_size": HIDDEN,
            "intermediate_size": 48,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 8,
            "max_position_embeddings": 512,
            "rms_norm_eps": 1e-6,
            "rope_theta": 10000.0,
            "draft_length": 4,
            "draft_vocab_size": VOCAB,
            "target_hidden_size": HIDDEN,
        }
        return HeadConfig(**{**values, **changes})

    return make


@pytest.fixture
def make_head(target: TargetInfo, make_config: Callable[..., HeadConfig]) -> Callable[..., DraftHead]:
    def make(seed: int = 0, **changes: Any) -> DraftHead:
        torch.manual_seed(seed)
        head = DraftHead(make_config(**changes), target.embedding)
        for parameter in head.parameters():
            torch.nn.init.normal_(parameter, 1.0 if parameter.dim() == 1 else 0.0, 0.3)
        return head.requires_grad_(False)

    return make
