"""The target's own forward pass gives what transformers' gives, whatever shares the pass, and hides what it must."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from dartspec.services.common.errors import FailedPrecondition
from dartspec.services.common.types import Tree
from dartspec.services.verifier.attention import Segment, causal_rows
from dartspec.services.verifier.kv_cache import KVCache
from dartspec.services.verifier.loader import target_from_model
from dartspec.services.verifier.target import Pass, Target
from dartspec.services.verifier.target_config import target_config
from dartspec.services.verifier.tree import depths, visible_rows

LAYERS = 8
VOCAB = 97
LENGTH = 24
CAPACITY = 512

SMALL: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.15,
    "tie_word_embeddings": False,
}
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 64}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 5e5,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
LINEAR = {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}

MODELS: dict[str, tuple[Any, Any]] = {
    "llama": (LlamaForCausalLM, LlamaConfig(**SMALL)),
    "llama_tied": (LlamaForCausalLM, LlamaConfig(**{**SMALL, "tie_word_embeddings": True})),
    "llama_biases": (LlamaForCausalLM, LlamaConfig(**SMALL, attention_bias=True, mlp_bias=True)),
    "llama_no_groups": (LlamaForCausalLM, LlamaConfig(**{**SMALL, "num_key_value_heads": 4})),
    "llama_one_kv_head": (LlamaForCausalLM, LlamaConfig(**{**SMALL, "num_key_value_heads": 1})),
    # Neither a power of two nor the hidden size over the heads.
    "llama_head_dim_10": (LlamaForCausalLM, LlamaConfig(**SMALL, head_dim=10)),
    "llama_head_dim_22": (LlamaForCausalLM, LlamaConfig(**SMALL, head_dim=22)),
    "llama_three_heads": (
        LlamaForCausalLM,
        LlamaConfig(**{**SMALL, "num_attention_heads": 3, "num_key_value_heads": 1}, head_dim=6),
    ),
    "llama_llama3_rope": (LlamaForCausalLM, LlamaConfig(**SMALL, rope_parameters=LLAMA3)),
    "llama_yarn_rope": (LlamaForCausalLM, LlamaConfig(**SMALL, rope_parameters=YARN)),
    "llama_linear_rope": (LlamaForCausalLM, LlamaConfig(**SMALL, rope_parameters=LINEAR)),
    "qwen2": (Qwen2ForCausalLM, Qwen2Config(**SMALL)),
    "qwen2_tied_yarn": (Qwen2ForCausalLM, Qwen2Config(**{**SMALL, "tie_word_embeddings": True}, rope_parameters=YARN)),
    "qwen3": (Qwen3ForCausalLM, Qwen3Config(**SMALL, head_dim=12)),
    "qwen3_tied_head_dim_20": (
        Qwen3ForCausalLM,
        Qwen3Config(**{**SMALL, "tie_word_embeddings": True}, head_dim=20, attention_bias=True),
    ),
    "llama_nine_layers": (LlamaForCausalLM, LlamaConfig(**{**SMALL, "num_hidden_layers": 9})),
}


def model_of(name: str, seed: int = 0, dtype: torch.dtype = torch.float32) -> Any:
    """A random model in which biases and norms are not the neutral values that they are initialised with."""
    torch.manual_seed(seed)
    kind, config = MODELS[name]
    model = kind(config)
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if parameter_name.endswith("bias"):
                parameter.normal_(std=0.3)
            elif "norm" in parameter_name:
                parameter.uniform_(0.5, 1.5)
    return model.to(dtype).eval()


def target_of(name: str, dtype: torch.dtype = torch.float32, invariant: bool = False) -> Target:
    return target_from_model(model_of(name, dtype=dtype), name, invariant=invariant).target


def sequence(target: Target, cache: KVCache, tokens: list[int]) -> Pass:
    """Process consecutive tokens and commit them."""
    rows = len(tokens)
    out = target.forward([Segment(cache, tokens, np.arange(rows, dtype=np.int32), causal_rows(rows))])
    cache.commit(range(rows))
    return out


def assert_close(got: torch.Tensor, expected: torch.Tensor) -> None:
    """Equal to the rounding of float32 after eight layers: 2e-5 of the largest value."""
    assert got.shape == expected.shape
    assert float((got - expected).abs().max()) <= 2e-5 * float(expected.abs().max())


def random_tokens(count: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, VOCAB, count).tolist()


def branching_tree(seed: int, nodes: int = 24) -> Tree:
    """A random tree, several children at many nodes, tokens that repeat at different depths."""
    rng = np.random.default_rng(seed)
    parents = [int(rng.integers(max(0, node - 6), node + 1)) for node in range(nodes)]
    tokens, taken = [], set()
    for parent in parents:
        token = int(rng.integers(0, 12))
        while (parent, token) in taken:
            token += 1
        taken.add((parent, token))
        tokens.append(token)
    zeros = np.zeros(nodes)
    return Tree(np.array(tokens, np.int32), np.array(parents, np.int32), zeros.astype("f4"), zeros.astype("u2"))


def path_to(tree: Tree, row: int) -> list[int]:
    """Rows from the root's to ``row``."""
    rows = [row]
    while rows[0]:
        rows.insert(0, int(tree.parents[rows[0] - 1]))
    return rows


@pytest.mark.parametrize(
    ("name", "invariant"), [*((name, False) for name in MODELS), ("llama_one_kv_head", True), ("qwen3", True)]
)
def test_logits_and_features_are_those_of_transformers(name: str, invariant: bool) -> None:
    model = model_of(name)
    tokens = random_tokens(LENGTH)
    with torch.inference_mode():
        reference = model(torch.tensor([tokens]), output_hidden_states=True, use_cache=False)
    states = reference.hidden_states
    layers = model.config.num_hidden_layers
    features = torch.cat([states[2], states[layers // 2], states[layers - 3]], dim=-1)[0]
    target = target_from_model(model, name, invariant=invariant).target
    for sizes in ([LENGTH], [1] * LENGTH, [7, 1, 10, 1, 1, 4]):
        cache = target.new_cache(CAPACITY)
        start = 0
        for size in sizes:
            out = sequence(target, cache, tokens[start : start + size])
            expected = reference.logits[0, start : start + size]
            assert_close(target.logits(out.hidden), expected)
            assert_close(out.features, features[start : start + size])
            start += size
        assert cache.length == LENGTH


@pytest.mark.parametrize("name", ["llama", "llama_yarn_rope", "qwen2", "qwen3"])
def test_a_tree_row_is_the_sequential_pass_along_its_path(name: str) -> None:
    target = target_of(name)
    prefix, root = random_tokens(17), 5
    tree = branching_tree(3, nodes=16)
    cache = target.new_cache(CAPACITY)
    sequence(target, cache, prefix)
    tokens = [root, *tree.token_ids.tolist()]
    out = target.forward([Segment(cache, tokens, depths(tree), visible_rows(tree))])
    logits = target.logits(out.hidden)
    for row in range(len(tokens)):
        alone = target.new_cache(CAPACITY)
        path = [tokens[r] for r in path_to(tree, row)]
        expected = sequence(target, alone, prefix + path)
        assert_close(logits[row], target.logits(expected.hidden)[-1])
        assert_close(out.features[row], expected.features[-1])


def test_each_visible_key_matters_and_no_hidden_one_does() -> None:
    target = target_of("llama")
    tree = branching_tree(4, nodes=8)
    cache = target.new_cache(CAPACITY)
    sequence(target, cache, random_tokens(9))
    tokens = [5, *tree.token_ids.tolist()]
    visible = visible_rows(tree)

    def logits_with(visible: NDArray[np.bool_], tokens: list[int]) -> torch.Tensor:
        return target.logits(target.forward([Segment(cache, tokens, depths(tree), visible)]).hidden)

    base = logits_with(visible, tokens)
    for row, column in zip(*np.nonzero(visible), strict=True):
        hidden = visible.copy()
        hidden[row, column] = False
        changed = (logits_with(hidden, tokens) - base).abs().amax(dim=-1) > 1e-4
        # The row itself, and whatever reads it, and nothing else.
        assert changed.numpy().tolist() == visible[:, row].tolist()
    for column in range(len(tokens)):
        other = list(tokens)
        other[column] = (other[column] + 40) % VOCAB
        changed = (logits_with(visible, other) - base).abs().amax(dim=-1) > 1e-4
        assert changed.numpy().tolist() == visible[:, column].tolist()


def test_every_position_of_the_prefix_is_read() -> None:
    target = target_of("qwen3")
    prefix = random_tokens(9)
    tree = branching_tree(5, nodes=6)
    rows = []
    for changed in (None, *range(len(prefix))):
        tokens = [(t + 40) % VOCAB if i == changed else t for i, t in enumerate(prefix)]
        cache = target.new_cache(CAPACITY)
        sequence(target, cache, tokens)
        out = target.forward([Segment(cache, [5, *tree.token_ids.tolist()], depths(tree), visible_rows(tree))])
        rows.append(target.logits(out.hidden))
    for other in rows[1:]:
        assert bool(((other - rows[0]).abs().amax(dim=-1) > 1e-4).all())


@pytest.mark.parametrize("invariant", [False, True], ids=["plain", "invariant"])
def test_rejected_rows_leave_nothing_behind(invariant: bool) -> None:
    target = target_of("llama", invariant=invariant)
    prefix = random_tokens(11)
    rng = np.random.default_rng(0)
    cache = target.new_cache(CAPACITY)
    sequence(target, cache, prefix)
    history = list(prefix)
    for number in range(8):
        tree = branching_tree(number)
        tokens = [int(rng.integers(VOCAB)), *tree.token_ids.tolist()]
        target.forward([Segment(cache, tokens, depths(tree), visible_rows(tree))])
        kept = path_to(tree, int(rng.integers(len(tokens))))
        cache.commit(kept)
        history += [tokens[row] for row in kept]
        assert cache.length == len(history)
        fresh = target.new_cache(CAPACITY)
        sequence(target, fresh, history)
        after = cache.data[:, :, :, : cache.length]
        assert_close(after, fresh.data[:, :, :, : cache.length])
        last = int(rng.integers(VOCAB))
        one = np.zeros(1, np.int32), np.ones((1, 1), bool)
        got, want = (target.logits(target.forward([Segment(c, [last], *one)]).hidden) for c in (cache, fresh))
        assert_close(got, want)


def test_a_dirty_slot_behind_the_prefix_is_never_read() -> None:
    for invariant in (False, True):
        target = target_of("llama", invariant=invariant)
        tree = branching_tree(6)
        results = []
        for dirt in (0.0, 1e4):
            cache = target.new_cache(2 * CAPACITY)
            sequence(target, cache, random_tokens(20))
            cache.data[:, :, :, cache.length :] = dirt
            out = target.forward([Segment(cache, [5, *tree.token_ids.tolist()], depths(tree), visible_rows(tree))])
            results.append(target.logits(out.hidden))
        assert torch.equal(*results)


def test_context_length_is_the_models_or_less() -> None:
    assert target_from_model(model_of("llama"), "m", context_length=50).target._cos.shape[0] == 50
    with pytest.raises(FailedPrecondition, match="context_length: the model has 256 positions, 257 wanted"):
        target_from_model(model_of("llama"), "m", context_length=257)


def test_an_unsupported_architecture_is_refused_by_name() -> None:
    with pytest.raises(FailedPrecondition, match=r"'mistral'.*llama, qwen2, qwen3"):
        target_config(MistralConfig(), None)


@pytest.mark.parametrize("config", [Qwen2Config, Qwen3Config])
def test_a_sliding_window_is_refused_by_name(config: Any) -> None:
    with pytest.raises(FailedPrecondition, match="use_sliding_window=True"):
        target_config(config(**SMALL, use_sliding_window=True, sliding_window=64), None)


@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
def test_a_rope_that_depends_on_the_length_is_refused_by_name(kind: str) -> None:
    config = LlamaConfig(**SMALL)
    config.rope_parameters = {"rope_type": kind, "rope_theta": 1e4, "factor": 2.0}
    with pytest.raises(FailedPrecondition, match=f"rope type '{kind}'.*llama3"):
        target_config(config, None)


def test_another_activation_is_refused_by_name() -> None:
    with pytest.raises(FailedPrecondition, match="hidden_act='gelu'"):
        target_config(LlamaConfig(**SMALL, hidden_act="gelu"), None)


@pytest.mark.parametrize(
    ("generation", "model", "expected"), [(None, 3, (3,)), ([4, 5], 3, (4, 5)), (7, None, (7,)), (None, None, ())]
)
def test_the_generation_config_has_the_last_word_on_eos(generation: Any, model: Any, expected: tuple[int, ...]) -> None:
    class Generation:
        eos_token_id = generation

    assert target_config(LlamaConfig(**SMALL, eos_token_id=model), Generation()).eos_token_ids == expected


def test_a_model_of_few_layers_runs_without_features() -> None:
    torch.manual_seed(0)
    config = LlamaConfig(**{**SMALL, "num_hidden_layers": 2})
    model = LlamaForCausalLM(config).eval()
    tokens = random_tokens(8)
    with torch.inference_mode():
        expected = model(torch.tensor([tokens])).logits[0]
    target = target_from_model(model, "short").target
    out = sequence(target, target.new_cache(CAPACITY), tokens)
    assert out.features.shape == (8, 0)
    assert_close(target.logits(out.hidden), expected)


def invariant_target(dtype: torch.dtype) -> Target:
    """Wider than the others, because kernels choose their blocking by size too."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=192,
        intermediate_size=512,
        num_hidden_layers=2,
        num_attention_heads=3,
        num_key_value_heads=1,
        max_position_embeddings=1024,
        tie_word_embeddings=False,
    )
    return target_from_model(LlamaForCausalLM(config).to(dtype).eval(), "wide", invariant=True).target


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
# 500: the keys pass from one block of slots to two within the chain.
@pytest.mark.parametrize("prefix", [1, 500, 700])
def test_invariant_rows_are_bitwise_those_of_plain_decoding(dtype: torch.dtype, prefix: int) -> None:
    target = invariant_target(dtype)
    cache = target.new_cache(1024)
    tokens = random_tokens(prefix + 70)
    for start in range(0, prefix, 512):
        sequence(target, cache, tokens[start : min(start + 512, prefix)])
    chain = tokens[prefix:]
    one_by_one = []
    for token in chain:
        one_by_one.append(target.logits(sequence(target, cache, [token]).hidden)[0])
    cache.length = prefix
    for rows in range(1, len(chain) + 1) if prefix == 500 else (1, 2, 3, 4, 5, 31, 32, 33, 34, 35, 64, 65, 67, 70):
        out = target.forward([Segment(cache, chain[:rows], np.arange(rows, dtype=np.int32), causal_rows(rows))])
        assert torch.equal(target.logits(out.hidden), torch.stack(one_by_one[:rows])), f"{rows} rows"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_invariant_root_does_not_notice_its_tree(dtype: torch.dtype) -> None:
    target = invariant_target(dtype)
    cache = target.new_cache(1024)
    sequence(target, cache, random_tokens(505))
    alone = target.logits(target.forward([Segment(cache, [5], np.zeros(1, np.int32), np.ones((1, 1), bool))]).hidden)[0]
    for nodes in [*range(1, 8), *range(28, 37), *range(60, 70)]:
        tree = branching_tree(nodes, nodes)
        out = target.forward([Segment(cache, [5, *tree.token_ids.tolist()], depths(tree), visible_rows(tree))])
        assert torch.equal(target.logits(out.hidden)[0], alone), f"{nodes} nodes"
