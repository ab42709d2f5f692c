"""Small models of each family against float64: prompts in chunks, single tokens and trees in shared passes.

The reference is transformers' own model with the same weights in float64 (its norms and angles stay float32), run over
each row's path from the first token.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM

from bench.gpu_model import random_tree
from bench.gpu_timing import rounded
from bench.plain_kernels import PlainKernels
from dartspec.services.verifier.attention import Segment, causal_rows
from dartspec.services.verifier.graphs import Graphs, cuda_capture
from dartspec.services.verifier.loader import target_from_model
from dartspec.services.verifier.static_inputs import Shape
from dartspec.services.verifier.target import Pass, Target
from dartspec.services.verifier.tree import depths, visible_rows

_SIZES: dict[str, Any] = {
    "vocab_size": 211,
    "hidden_size": 192,  # heads of 32, in every family, so that they share compiled kernels
    "intermediate_size": 160,
    "num_hidden_layers": 8,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
    "initializer_range": 0.1,
    "tie_word_embeddings": False,
}
FAMILIES: dict[str, Callable[[], Any]] = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**_SIZES, attention_bias=True)),
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**_SIZES)),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**_SIZES, head_dim=32)),
}
# 150 tokens: two parts of keys for the attention kernel. The third session is a chunk of a prompt.
_PREFIXES = (150, 33, 0)
_NODES = 23
_CHUNK = 21


def check(device: torch.device, report: dict[str, Any]) -> None:
    """Largest error of a logit over the largest logit, by family, type and way of running; and how many `rows`."""
    for family in FAMILIES:
        for dtype in (torch.float32, torch.bfloat16):
            report[f"{family} {str(dtype).removeprefix('torch.')}"] = _errors(family, dtype, device)


def run_directly(body: Callable[[], Pass]) -> tuple[Callable[[], None], Pass]:
    """Instead of a capture, where there is no CUDA: every replay runs the pass again, into the same result."""
    out = body()

    def replay() -> None:
        again = body()
        out.hidden.copy_(again.hidden)
        out.features.copy_(again.features)

    return replay, out


def graphs_for(target: Target, shapes: Sequence[Shape]) -> Graphs:
    """CUDA graphs of the target; on a processor the same passes without capture."""
    if target.device.type != "cuda":
        return Graphs(target, PlainKernels(target), shapes, run_directly)
    from dartspec.services.verifier.kernels import TritonKernels

    kernels = TritonKernels(target, target.rope, max(shape.rows for shape in shapes))
    return Graphs(target, kernels, shapes, cuda_capture())


@torch.inference_mode()
def _errors(family: str, dtype: torch.dtype, device: torch.device) -> dict[str, Any]:
    torch.manual_seed(1)
    model = FAMILIES[family]().to(dtype).eval()
    reference = copy.deepcopy(model).double()
    target = target_from_model(model.to(device), family).target
    rng = np.random.default_rng(2)
    prompts = [rng.integers(0, 211, length).tolist() for length in _PREFIXES]
    caches = [target.new_cache(512) for _ in prompts]
    for cache, prompt in zip(caches, prompts, strict=True):
        for start in range(0, len(prompt), 64):  # chunks
            part = prompt[start : start + 64]
            target.eager([_consecutive(cache, part)])
            cache.commit(range(len(part)))
    tree = random_tree(_NODES, 211)
    chunk = rng.integers(0, 211, _CHUNK).tolist()
    segments = [
        Segment(caches[0], [5, *tree.token_ids.tolist()], depths(tree), visible_rows(tree)),
        _consecutive(caches[1], [9]),
        _consecutive(caches[2], chunk),
    ]
    expected = torch.stack([_reference_row(reference, path) for path in _paths(prompts, segments)])
    found: dict[str, Any] = {"rows": len(expected)}
    ways: dict[str, Callable[[], Pass | None]] = {"eager": lambda: target.eager(segments)}

    def graph(shape: Shape) -> Pass | None:
        return graphs_for(target, [shape]).run(segments)

    ways["graph, small tile"] = lambda: graph(Shape(64, 64, 4))
    ways["graph, large tile"] = lambda: graph(Shape(128, 16, 16))
    for name, run in ways.items():
        try:
            out = run()
            assert out is not None
            logits = target.logits(out.hidden).double().cpu()
            found[name] = rounded(float((logits - expected).abs().max() / expected.abs().max()))
        except Exception as error:
            found[name] = f"{type(error).__name__}: {error}"
    return found


def _consecutive(cache: Any, tokens: list[int]) -> Segment:
    return Segment(cache, tokens, np.arange(len(tokens), dtype=np.int32), causal_rows(len(tokens)))


def _paths(prompts: Sequence[list[int]], segments: Sequence[Segment]) -> list[list[int]]:
    """All tokens that each row sees, in the order of their positions."""
    return [
        prompt + [segment.token_ids[other] for other in np.flatnonzero(segment.visible[row])]
        for prompt, segment in zip(prompts, segments, strict=True)
        for row in range(segment.rows)
    ]


def _reference_row(reference: Any, path: list[int]) -> torch.Tensor:
    return reference(torch.tensor([path]), use_cache=False).logits[0, -1]
