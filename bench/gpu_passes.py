"""Times of passes of the large model: single tokens, trees, prompts, drafts, and whether rows notice their company."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from bench.gpu_model import Contexts, Preset, kv_bytes, make_head, weight_bytes, with_draft_length
from bench.gpu_timing import Clock, rounded, timed
from dartspec.services.draft.propose import DraftInput, Proposer
from dartspec.services.verifier.attention import Segment, causal_rows
from dartspec.services.verifier.loader import LoadedTarget
from dartspec.services.verifier.target import Pass, Target

# Seconds that must be left for one more point.
_RESERVE = 10.0


def passes(loaded: LoadedTarget, preset: Preset, copy_gb_per_s: float, clock: Clock, report: dict[str, Any]) -> None:
    """T_AR (no nodes) and T_V by context, batch and nodes, and the share of what memory could do.

    Each point: `forward` as it is served, and without graphs for single tokens. limit_ms: weights, and keys and values
    of the context, over the copy's bandwidth.
    """
    target = loaded.target
    report["weight_bytes"] = weight_bytes(target)
    report["points"] = points = []
    for length in preset.contexts:
        contexts = Contexts(target, length)
        contexts.open(max(preset.batches), max(preset.nodes) + 1)
        for nodes in preset.nodes:
            for batch in preset.batches:
                if clock.left() < _RESERVE:
                    return
                points.append(_point(target, contexts, batch, nodes, copy_gb_per_s, preset.repeat_seconds))
        contexts.caches.clear()
        if target.device.type == "cuda":
            torch.cuda.empty_cache()


def _point(
    target: Target, contexts: Contexts, batch: int, nodes: int, copy_gb_per_s: float, seconds: float
) -> dict[str, Any]:
    segments = contexts.segments(batch, nodes)
    point: dict[str, Any] = {"context": contexts.length, "batch": batch, "nodes": nodes}
    taken = timed(lambda: _logits(target, target.forward, segments), target.device, seconds)
    point.update(taken)
    limit = (weight_bytes(target) + kv_bytes(target, batch * contexts.length)) / copy_gb_per_s / 1e6
    point["limit_ms"] = rounded(limit)
    point["of_limit"] = rounded(limit / taken["wall_ms"])
    if not nodes:
        point["tokens_per_s"] = rounded(1e3 * batch / taken["wall_ms"])
        point["eager"] = timed(lambda: _logits(target, target.eager, segments), target.device, seconds)
    return point


def _logits(target: Target, forward: Callable[[Sequence[Segment]], Pass], segments: Sequence[Segment]) -> torch.Tensor:
    return target.logits(forward(segments).hidden)


def prompts(loaded: LoadedTarget, preset: Preset, clock: Clock, report: dict[str, Any]) -> None:
    """Tokens per second of reading a prompt in chunks of several sizes."""
    target = loaded.target
    for rows in (128, 256, 512, 1024, 2048):
        if rows > preset.prompt or clock.left() < _RESERVE:
            return
        cache = target.new_cache(preset.prompt)
        tokens = [i % target.config.vocab_size for i in range(preset.prompt)]

        def read(cache: Any = cache, tokens: list[int] = tokens, rows: int = rows) -> None:
            cache.length = 0
            for start in range(0, preset.prompt, rows):
                part = tokens[start : start + rows]
                target.forward([Segment(cache, part, np.arange(len(part), dtype=np.int32), causal_rows(len(part)))])
                cache.length += len(part)

        taken = timed(read, target.device, preset.repeat_seconds)
        report[f"chunks of {rows}"] = {**taken, "tokens_per_s": rounded(1e3 * preset.prompt / taken["wall_ms"])}


def drafts(loaded: LoadedTarget, preset: Preset, clock: Clock, report: dict[str, Any]) -> None:
    """T_D of a round that committed three tokens, by size of the draft vocabulary, depth and batch."""
    target = loaded.target
    report["points"] = points = []
    new = 3
    for vocabulary in preset.draft_vocabularies:
        head = make_head(loaded, vocabulary, preset.depths[0] - 1)
        parameters = sum(p.numel() for name, p in head.named_parameters())
        for depth in preset.depths:
            proposer = Proposer(with_draft_length(head, depth - 1))
            for batch in preset.batches:
                if clock.left() < _RESERVE:
                    return
                points.append(
                    {
                        "draft_vocabulary": vocabulary,
                        "head_bytes": parameters * target.dtype.itemsize,
                        "depth": depth,
                        "batch": batch,
                        **_draft(target, proposer, batch, new, preset),
                    }
                )
        del head


def _draft(target: Target, proposer: Proposer, batch: int, new: int, preset: Preset) -> dict[str, float]:
    features = torch.randn(new, 3 * target.config.hidden, device=target.device).to(target.dtype)
    caches = [proposer.new_cache() for _ in range(batch)]
    prefix, following = features[:1].expand(preset.contexts[0], -1), torch.zeros(preset.contexts[0], dtype=torch.int64)
    for cache in caches:
        proposer.append([DraftInput(cache, prefix, following)])
    tokens = torch.arange(new)

    def draft() -> None:
        for cache in caches:
            cache.truncate(preset.contexts[0])
        proposer.propose([DraftInput(cache, features, tokens) for cache in caches], 25)

    return timed(draft, target.device, preset.repeat_seconds)


@torch.inference_mode()
def company(loaded: LoadedTarget, preset: Preset, clock: Clock, report: dict[str, Any]) -> None:
    """Whether a row is bitwise the same alone and among others: products, and whole passes with and without graphs."""
    target = loaded.target
    layer = target.layers[0]
    matrices = {
        "qkv": layer.qkv,
        "out": layer.out,
        "gate_up": layer.gate_up,
        "down": layer.down,
        "lm_head": target.lm_head,
    }
    counts = (1, 2, 4, 8, 16, 32, 64, 128)
    x = torch.randn(counts[-1], max(m.in_features for m in matrices.values()), device=target.device).to(target.dtype)
    report["products"] = {}
    for name, matrix in matrices.items():
        part = x[:, : matrix.in_features].contiguous()
        rows = {count: matrix(part[:count])[0] for count in counts}
        # Numbers of rows that give row 0 the same bits share a letter.
        kinds: list[torch.Tensor] = []
        letters = ""
        for count in counts:
            found = next((i for i, kind in enumerate(kinds) if torch.equal(kind, rows[count])), len(kinds))
            if found == len(kinds):
                kinds.append(rows[count])
            letters += "abcdefgh"[found]
        report["products"][name] = letters
    report["product_rows"] = list(counts)
    contexts = Contexts(target, preset.contexts[0])
    contexts.open(max(preset.batches), max(preset.nodes) + 1)
    for name, forward in (("forward", target.forward), ("eager", target.eager)):
        if clock.left() < _RESERVE:
            return
        alone = forward(contexts.segments(1, 0)).hidden[0].clone()
        report[name] = {}
        for batch in preset.batches:
            for nodes in preset.nodes:
                row = forward(contexts.segments(batch, nodes)).hidden[0]
                report[name][f"{batch} sessions, {nodes} nodes"] = bool(torch.equal(row, alone))


@torch.inference_mode()
def products(loaded: LoadedTarget, preset: Preset, copy_gb_per_s: float, report: dict[str, Any]) -> None:
    """Share of the copy's bandwidth at which weights are read, by matrix and number of rows, layer after layer."""
    target = loaded.target
    names = ("qkv", "out", "gate_up", "down")
    for rows in (1, 8, 16, 64, 128, 256):
        report[f"{rows} rows"] = shares = {}
        for name in names:
            matrices = [getattr(layer, name) for layer in target.layers]  # more than fits a cache
            x = torch.randn(rows, matrices[0].in_features, device=target.device).to(target.dtype)

            def multiply(matrices: list[Any] = matrices, x: torch.Tensor = x) -> None:
                for matrix in matrices:
                    matrix(x)

            taken = timed(multiply, target.device, preset.repeat_seconds)
            size = sum(m.in_features * m.out_features for m in matrices) * target.dtype.itemsize
            shares[name] = rounded(size / taken["wall_ms"] / 1e6 / copy_gb_per_s)
