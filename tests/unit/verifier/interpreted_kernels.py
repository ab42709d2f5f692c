"""Runs the Triton kernels on the processor, interpreted, beside their plain twin; prints relative errors as JSON.

A program of its own, because Triton decides at import whether it interprets. float16 stands for short floats: the
interpreter takes the bits of bfloat16 for integers in products.
"""

from __future__ import annotations

import json
import sys

import numpy as np
import torch

from bench.plain_kernels import PlainKernels
from dartspec.services.verifier.attention import Segment, causal_rows
from dartspec.services.verifier.kernels import TritonKernels
from dartspec.services.verifier.static_inputs import Inputs, Shape
from dartspec.services.verifier.tree import depths, visible_rows
from tests.unit.verifier.test_target import branching_tree, random_tokens, target_of

LAYER = 3


def relative(got: torch.Tensor, expected: torch.Tensor) -> float:
    return float((got.double() - expected.double()).abs().max() / expected.double().abs().max())


def errors(name: str, dtype: torch.dtype) -> dict[str, float]:
    """Of every kernel, on a mixed pass with padding."""
    target = target_of(name, dtype=dtype)
    c = target.config
    caches = [target.new_cache(capacity) for capacity in (400, 700, 400)]
    for slab in {id(cache.slab): cache.slab for cache in caches}.values():
        slab.data.normal_()
    for cache, length in zip(caches, (200, 0, 70), strict=True):
        cache.length = length
    tree = branching_tree(3, 17)
    segments = [
        Segment(caches[0], [5, *tree.token_ids.tolist()], depths(tree), visible_rows(tree)),
        Segment(caches[1], random_tokens(5), np.arange(5, dtype=np.int32), causal_rows(5)),
        Segment(caches[2], [3], np.zeros(1, np.int32), np.ones((1, 1), bool)),
    ]
    real = sum(segment.rows for segment in segments)
    shape = Shape(26, 9, 8)
    inputs = Inputs(shape, target.norm)
    inputs.fill(segments)
    kernels, twin = TritonKernels(target, target.rope, 32), PlainKernels(target)
    x, delta = (torch.randn(shape.rows, c.hidden).to(dtype) for _ in range(2))
    weight = target.layers[LAYER].input_norm
    gate_up = torch.randn(shape.rows, 2 * c.intermediate).to(dtype)
    qkv = torch.randn(shape.rows, (c.heads + 2 * c.kv_heads) * c.head_dim).to(dtype)
    found = {}
    for what, change in (("first norm", None), ("norm", delta)):
        pairs = zip(kernels.add_norm(x, change, weight), twin.add_norm(x, change, weight), strict=True)
        found[what] = max(relative(*pair) for pair in pairs)
    found["gate"] = relative(kernels.gate(gate_up), twin.gate(gate_up))
    untouched = [slab.data.clone() for slab in (caches[0].slab, caches[1].slab)]

    def stored(which: TritonKernels | PlainKernels) -> tuple[torch.Tensor, torch.Tensor]:
        for slab, data in zip((caches[0].slab, caches[1].slab), untouched, strict=True):
            slab.data.copy_(data)
        queries = which.rotate_store(inputs, LAYER, target.layers[LAYER], qkv)
        return queries[:real], torch.cat([slab.data.flatten() for slab in (caches[0].slab, caches[1].slab)])

    ours, theirs = stored(kernels), stored(twin)
    found["queries"], found["caches"] = relative(ours[0], theirs[0]), relative(ours[1], theirs[1])
    # Rounding aside, the same places were written.
    before = torch.cat([data.flatten() for data in untouched])
    found["places"] = float(((ours[1] != before) != (theirs[1] != before)).sum())
    queries = torch.randn(shape.rows, c.heads, c.head_dim).to(dtype)
    found["attention"] = relative(kernels.attend(inputs, LAYER, queries), twin.attend(inputs, LAYER, queries))
    return found


if __name__ == "__main__":
    torch.manual_seed(0)
    wanted = [argument.split(":") for argument in sys.argv[1:]]
    print(json.dumps({f"{name}:{dtype}": errors(name, getattr(torch, dtype)) for name, dtype in wanted}))
