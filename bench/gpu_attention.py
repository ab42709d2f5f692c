"""Ways to attend to trees on a device, a layer at a time: what a mask costs, and what the verifier's kernel costs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from bench.gpu_model import Contexts, Preset, kv_bytes
from bench.gpu_timing import Clock, rounded, timed
from dartspec.services.verifier.attention import Segment
from dartspec.services.verifier.loader import LoadedTarget
from dartspec.services.verifier.static_inputs import Inputs, Shape, items_needed
from dartspec.services.verifier.target import Target

_RESERVE = 20.0


@torch.inference_mode()
def check(loaded: LoadedTarget, preset: Preset, copy_gb_per_s: float, clock: Clock, report: dict[str, Any]) -> None:
    """Milliseconds of a layer's attention, and the largest difference from float32, by context, batch, nodes and way.

    limit_ms: the keys and values of the context over the copy's bandwidth.
    """
    target = loaded.target
    report["points"] = points = []
    flex = _compiled_flex() if target.device.type == "cuda" else None
    for length in preset.contexts:
        contexts = Contexts(target, length)
        contexts.open(max(preset.batches), max(preset.nodes) + 1)
        for nodes in (0, max(preset.nodes)):
            for batch in (min(preset.batches), max(preset.batches)):
                if clock.left() < _RESERVE:
                    return
                segments = contexts.segments(batch, nodes)
                limit = kv_bytes(target, batch * length) / target.config.layers / copy_gb_per_s / 1e6
                point = {"context": length, "batch": batch, "nodes": nodes, "limit_ms": rounded(limit)}
                points.append({**point, **_ways(target, segments, flex, preset.repeat_seconds)})


def _ways(target: Target, segments: list[Segment], flex: Any, seconds: float) -> dict[str, Any]:
    """Each way over keys in one tensor [sessions, kv_heads, keys, head_dim], which slots are not; ours over slots."""
    c = target.config
    sessions, rows, length = len(segments), segments[0].rows, segments[0].cache.length
    keys = -(-(length + rows) // 64) * 64
    stored = torch.stack([segment.cache.data[0, :, :, :keys] for segment in segments])  # [sessions, 2, kv_heads, ...]
    key, value = stored[:, 0].contiguous(), stored[:, 1].contiguous()
    query = torch.randn(sessions, c.heads, rows, c.head_dim, device=target.device).to(target.dtype)
    seen = np.zeros((sessions, rows, keys), dtype=bool)
    seen[:, :, :length] = True
    for number, segment in enumerate(segments):
        seen[number, :, length : length + rows] = segment.visible
    allowed = torch.from_numpy(seen).to(target.device)
    mask = torch.zeros(allowed.shape, dtype=target.dtype, device=target.device).masked_fill_(~allowed, float("-inf"))
    group = c.heads // c.kv_heads
    grouped = query.view(sessions, c.kv_heads, group * rows, c.head_dim)
    repeated = mask.repeat(1, group, 1)[:, None]
    scale = c.head_dim**-0.5

    def regrouped(out: torch.Tensor) -> torch.Tensor:
        return out.view(sessions, c.heads, rows, c.head_dim)

    def multiplied() -> torch.Tensor:
        scores = grouped @ key.transpose(-1, -2) * scale + repeated
        return regrouped(scores.float().softmax(-1).to(target.dtype) @ value)

    ways: dict[str, Callable[[], torch.Tensor]] = {
        "sdpa, grouped heads": lambda: F.scaled_dot_product_attention(
            query, key, value, attn_mask=mask[:, None], scale=scale, enable_gqa=group > 1
        ),
        "sdpa, heads as rows": lambda: regrouped(
            F.scaled_dot_product_attention(grouped, key, value, attn_mask=repeated, scale=scale)
        ),
        "matmul": multiplied,
    }
    if flex is not None:
        ways["flex"] = _flex(flex, query, key, value, allowed, scale)
    if target.device.type == "cuda":
        ways["kernel"] = _kernel(target, segments, query)
    exact = _exact(query, key, value, allowed, scale)
    found: dict[str, Any] = {}
    for name, way in ways.items():
        try:
            error = float((way().float() - exact).abs().max())
            found[name] = {**timed(way, target.device, seconds), "error": rounded(error)}
        except Exception as problem:
            found[name] = f"{type(problem).__name__}: {str(problem)[:500]}"
    return found


def _exact(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, allowed: torch.Tensor, scale: float
) -> torch.Tensor:
    out = []
    for number in range(len(query)):  # one by one, for the memory
        k, v = (each[number].float().repeat_interleave(query.shape[1] // key.shape[1], 0) for each in (key, value))
        scores = (query[number].float() @ k.transpose(-1, -2) * scale).masked_fill(~allowed[number], float("-inf"))
        out.append(scores.softmax(-1) @ v)
    return torch.stack(out)


def _compiled_flex() -> Any:
    try:
        from torch.nn.attention.flex_attention import flex_attention

        return torch.compile(flex_attention)
    except Exception:
        return None


def _flex(
    flex: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, allowed: torch.Tensor, scale: float
) -> Callable[[], torch.Tensor]:
    from torch.nn.attention.flex_attention import create_block_mask

    def visible(session: Any, head: Any, row: Any, position: Any) -> Any:
        return allowed[session, row, position]

    made: list[Any] = []

    def attend() -> torch.Tensor:
        if not made:
            sessions, rows, keys = allowed.shape
            made.append(create_block_mask(visible, sessions, None, rows, keys, device=str(query.device)))
        return flex(query, key, value, block_mask=made[0], scale=scale, enable_gqa=query.shape[1] > key.shape[1])

    return attend


def _kernel(target: Target, segments: list[Segment], query: torch.Tensor) -> Callable[[], torch.Tensor]:
    from dartspec.services.verifier.kernels import TritonKernels

    sessions, heads, rows, head_dim = query.shape
    padded = 1 << (heads // target.config.kv_heads - 1).bit_length()
    tile = max((16 if rows == 1 else 64) // padded, 1)
    inputs = Inputs(Shape(sessions * rows, items_needed(segments, tile), tile), target.norm)
    inputs.fill(segments)
    kernels = TritonKernels(target, target.rope, sessions * rows)
    flat = query.transpose(1, 2).reshape(sessions * rows, heads, head_dim).contiguous()
    return lambda: kernels.attend(inputs, 0, flat).view(sessions, rows, heads, head_dim).transpose(1, 2)
