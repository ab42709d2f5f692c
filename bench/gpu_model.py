"""What the GPU check runs: a target and a head with random weights, made on the device, and sessions in mid-answer."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from dartspec.services.common.types import Tree
from dartspec.services.draft.config import HeadConfig
from dartspec.services.draft.head import DraftHead
from dartspec.services.verifier.attention import Segment
from dartspec.services.verifier.kv_cache import KVCache
from dartspec.services.verifier.loader import LoadedTarget, target_from_model
from dartspec.services.verifier.target import Target
from dartspec.services.verifier.tree import depths, visible_rows


@dataclass(frozen=True)
class Preset:
    """Sizes of a check."""

    model: dict[str, Any]
    dtype: torch.dtype
    contexts: tuple[int, ...]
    batches: tuple[int, ...]
    nodes: tuple[int, ...]
    depths: tuple[int, ...]
    draft_vocabularies: tuple[int, ...]
    prompt: int
    repeat_seconds: float


QWEN3_8B = Preset(
    model={
        "vocab_size": 151936,
        "hidden_size": 4096,
        "intermediate_size": 12288,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 40960,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1e6,
        "tie_word_embeddings": False,
    },
    dtype=torch.bfloat16,
    contexts=(440, 4000),
    batches=(1, 4, 16, 64),
    nodes=(0, 8, 16, 24, 59),
    depths=(4, 8, 16),
    draft_vocabularies=(32000, 151936),
    prompt=2048,
    repeat_seconds=0.3,
)
SMALL = Preset(
    model={
        **QWEN3_8B.model,
        "vocab_size": 512,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 8,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 1024,
    },
    dtype=torch.float32,
    contexts=(40, 440),
    batches=(1, 4),
    nodes=(0, 8, 59),
    depths=(4, 8),
    draft_vocabularies=(128, 512),
    prompt=256,
    repeat_seconds=0.02,
)
PRESETS = {"qwen3-8b": QWEN3_8B, "small": SMALL}


@contextlib.contextmanager
def made_on(device: torch.device, dtype: torch.dtype) -> Iterator[None]:
    """Parameters that are made here are of this type, on this device from the start."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device):
            yield
    finally:
        torch.set_default_dtype(before)


def make_target(preset: Preset, device: torch.device) -> LoadedTarget:
    """A Qwen3 model with random weights."""
    torch.manual_seed(0)
    with made_on(device, preset.dtype):
        model = Qwen3ForCausalLM(Qwen3Config(**preset.model))
    return target_from_model(model.requires_grad_(False).eval(), "random")


def make_head(loaded: LoadedTarget, draft_vocabulary: int, draft_length: int) -> DraftHead:
    """A draft head of the target's shape with random weights."""
    c = loaded.target.config
    config = HeadConfig(
        vocab_size=c.vocab_size,
        hidden_size=c.hidden,
        intermediate_size=c.intermediate,
        num_attention_heads=c.heads,
        num_key_value_heads=c.kv_heads,
        head_dim=c.head_dim,
        max_position_embeddings=c.max_positions,
        rms_norm_eps=c.norm_epsilon,
        rope_theta=1e6,
        draft_length=draft_length,
        draft_vocab_size=draft_vocabulary,
        target_hidden_size=c.hidden,
    )
    with made_on(loaded.target.device, loaded.target.dtype):
        head = DraftHead(config, loaded.info.embedding)
    return head.requires_grad_(False).eval()


def with_draft_length(head: DraftHead, draft_length: int) -> DraftHead:
    """The same head, asked for another number of offsets."""
    head.config = dataclasses.replace(head.config, draft_length=draft_length)
    return head


def random_tree(nodes: int, vocabulary: int, seed: int = 0) -> Tree:
    """Parents among the last few nodes, distinct tokens among siblings."""
    rng = np.random.default_rng(seed)
    parents = np.array([rng.integers(max(0, node - 6), node + 1) for node in range(nodes)], np.int32)
    tokens = ((np.arange(nodes) + rng.integers(vocabulary)) % vocabulary).astype(np.int32)
    return Tree(tokens, parents, np.full(nodes, 0.5, np.float32), np.zeros(nodes, np.uint16))


@dataclass
class Contexts:
    """Sessions with so many tokens of random keys and values."""

    target: Target
    length: int
    caches: list[KVCache] = field(default_factory=list)

    def open(self, count: int, room: int) -> None:
        """Sessions with room for so many rows."""
        self.caches = [self.target.new_cache(self.length + room) for _ in range(count)]
        for slab in {id(cache.slab): cache.slab for cache in self.caches}.values():
            slab.data.normal_()  # zeros would be a special case for kernels and clocks alike
        for cache in self.caches:
            cache.length = self.length

    def segments(self, batch: int, nodes: int) -> list[Segment]:
        """A pass in which each of ``batch`` sessions brings its pending token and a tree of its own."""
        vocabulary = self.target.config.vocab_size
        found = []
        for number, cache in enumerate(self.caches[:batch]):
            tree = random_tree(nodes, vocabulary, number)
            found.append(Segment(cache, [number, *tree.token_ids.tolist()], depths(tree), visible_rows(tree)))
        return found


def weight_bytes(target: Target) -> int:
    """Of what a pass reads whole: the layers, the final norm and the output matrix."""
    c = target.config
    layer = c.hidden * (c.heads + 2 * c.kv_heads) * c.head_dim + c.heads * c.head_dim * c.hidden
    layer += 3 * c.hidden * c.intermediate + 2 * c.hidden
    return (c.layers * layer + c.hidden + c.vocab_size * c.hidden) * target.dtype.itemsize


def kv_bytes(target: Target, positions: int) -> int:
    """Of the keys and values of so many positions."""
    c = target.config
    return 2 * c.layers * c.kv_heads * c.head_dim * positions * target.dtype.itemsize
