"""Passes with compiled loops give what plain torch gives, and a row's bits depend on nothing but its own text."""

from __future__ import annotations

import logging
import math
import sys

import numpy as np
import pytest
import torch

from bench.plain_kernels import PlainKernels
from dartspec.services.verifier import compiled_passes
from dartspec.services.verifier.attention import Segment
from dartspec.services.verifier.compiled_passes import TILE, CompiledPasses, compiled
from dartspec.services.verifier.graphs import relative_error
from dartspec.services.verifier.kv_cache import KVCache
from dartspec.services.verifier.linear import ONE_SHAPE
from dartspec.services.verifier.static_inputs import LONGEST, Inputs, Shape, items_needed
from dartspec.services.verifier.static_pass import static_pass
from dartspec.services.verifier.target import Target
from dartspec.services.verifier.tree import depths, visible_rows
from tests.unit.verifier.test_static_pass import caches_with, chunk, mixed, tree_of
from tests.unit.verifier.test_target import (
    assert_close,
    branching_tree,
    invariant_target,
    random_tokens,
    sequence,
    target_of,
)

pytest.importorskip("numba", reason="without numba nothing is compiled")

# Groups of 1, 2, 3 and 4 heads that share keys; heads of 6 to 22; with biases; with norms of heads.
FAMILIES = [
    "llama_biases",
    "llama_three_heads",
    "llama_one_kv_head",
    "llama_head_dim_22",
    "llama_no_groups",
    "qwen2",
    "qwen3",
]


def kernels_of(target: Target) -> CompiledPasses:
    assert isinstance(target.fast, CompiledPasses)
    return target.fast


@pytest.mark.parametrize("name", FAMILIES)
def test_a_mixed_pass_is_that_of_plain_torch(name: str) -> None:
    target = target_of(name)
    segments = mixed(target)
    out, expected = kernels_of(target).run(segments), target.eager(segments)
    assert out is not None
    assert_close(out.hidden, expected.hidden)
    assert_close(out.features, expected.features)


@pytest.mark.parametrize("name", ["llama", "qwen3", "llama_no_groups"])
def test_each_loop_is_its_plain_twin_in_bfloat16(name: str) -> None:
    """Rounded at the same places: but for sums in another order all elements are the same."""
    torch.manual_seed(0)
    target = target_of(name, dtype=torch.bfloat16)
    segments = mixed(target)
    rows = sum(segment.rows for segment in segments)
    inputs = Inputs(Shape(rows, items_needed(segments, TILE), TILE), target.norm)
    inputs.fill(segments)
    c, layer = target.config, target.layers[3]
    loops, twin = kernels_of(target).kernels, PlainKernels(target)
    x, delta = (torch.randn(rows, c.hidden).bfloat16() for _ in range(2))
    gate_up = 4 * torch.randn(rows, 2 * c.intermediate).bfloat16()
    qkv = torch.randn(rows, (c.heads + 2 * c.kv_heads) * c.head_dim).bfloat16()
    slabs = list({id(segment.cache.slab): segment.cache.slab for segment in segments}.values())
    before = [slab.data.clone() for slab in slabs]

    def results(which: object) -> dict[str, torch.Tensor]:
        for slab, data in zip(slabs, before, strict=True):
            slab.data.copy_(data)
        total, normed = which.add_norm(x, delta, layer.input_norm)  # type: ignore[attr-defined]
        queries = which.rotate_store(inputs, 3, layer, qkv)  # type: ignore[attr-defined]
        return {
            "total": total,
            "norm": normed,
            "first norm": which.add_norm(x, None, layer.input_norm)[1],  # type: ignore[attr-defined]
            "gate": which.gate(gate_up),  # type: ignore[attr-defined]
            "queries": queries,
            "caches": torch.cat([slab.data.flatten() for slab in slabs]),
            "attention": which.attend(inputs, 3, queries),  # type: ignore[attr-defined]
        }

    with torch.inference_mode():
        ours, theirs = results(loops), results(twin)
    assert torch.equal(ours["total"], theirs["total"])
    for what, expected in theirs.items():
        difference = (ours[what].float() - expected.float()).abs()
        # A unit in the last place of bfloat16, of the largest value; seldom more than nothing, but for attention, which
        # torch computes from weights of bfloat16.
        assert float(difference.max()) <= 2**-7 * float(expected.float().abs().max()), what
        if what != "attention":
            assert float((difference > 0).float().mean()) < 0.01, what


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_row_of_a_tree_has_the_bits_of_plain_decoding(dtype: torch.dtype) -> None:
    """At every node, whatever its neighbours, with another session in the pass, and past blocks of keys."""
    target = invariant_target(dtype)
    assert target.rows == ONE_SHAPE
    prompt = random_tokens(120)
    (cache, other) = caches_with(target, (len(prompt), 33), (512, 512))
    tree = branching_tree(11, 30)
    tokens = [5, *tree.token_ids.tolist()]
    segment = Segment(cache, tokens, depths(tree), visible_rows(tree))
    out = target.forward([tree_of(other, 7), segment])
    rows = out.hidden[8:]
    for node in range(len(tokens)):
        path = [row for row in range(node + 1) if segment.visible[node, row]]
        plain = target.new_cache(512)
        sequence(target, plain, prompt[:64])
        sequence(target, plain, prompt[64:])
        for row in path:
            alone = sequence(target, plain, [tokens[row]])
        assert torch.equal(alone.hidden[0], rows[node]), node
        plain.release()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_bits_do_not_depend_on_chunks_or_threads(dtype: torch.dtype) -> None:
    target = invariant_target(dtype)
    prompt = random_tokens(300)
    threads = torch.get_num_threads()
    found = []
    for size, number in ((300, 1), (300, 2), (97, 2), (1, 1)):
        torch.set_num_threads(number)
        try:
            cache = target.new_cache(512)
            for start in range(0, len(prompt), size):
                out = sequence(target, cache, prompt[start : start + size])
            found.append((out.hidden[-1].clone(), cache.data[:, :, :, : len(prompt)].clone()))
            cache.release()
        finally:
            torch.set_num_threads(threads)
    for hidden, keys_and_values in found[1:]:
        assert torch.equal(hidden, found[0][0])
        assert torch.equal(keys_and_values, found[0][1])


def test_padding_is_stored_nowhere_and_gives_zeros() -> None:
    target = target_of("qwen3")
    segments = mixed(target)
    inputs = Inputs(Shape(64, 20, TILE), target.norm)
    inputs.fill(segments)
    slabs = list({id(segment.cache.slab): segment.cache.slab for segment in segments}.values())
    target.eager(segments)
    before = [slab.data.clone() for slab in slabs]
    out = static_pass(target, inputs, kernels_of(target).kernels)
    rows = sum(segment.rows for segment in segments)
    assert_close(out.hidden[:rows], target.eager(segments).hidden)
    for slab, data in zip(slabs, before, strict=True):
        assert_close(slab.data, data)
    queries = torch.randn(64, target.config.heads, target.config.head_dim)
    mixed_values = kernels_of(target).kernels.attend(inputs, 0, queries)
    assert not mixed_values[rows:].any()
    assert mixed_values[:rows].any(dim=1).all()


@pytest.mark.parametrize("rows", [3, 33, 67, 130])
def test_rows_that_are_taken_along_are_not_in_what_comes_out(rows: int) -> None:
    """33, 67 and 130 rows become 34, 72 and 144 in the products; a neighbour's slot stays as it is."""
    target = target_of("llama")
    cache, other = caches_with(target, (20, 30), (512, 512))
    segment = chunk(cache, rows)
    neighbour = other.data.clone()
    out, expected = kernels_of(target).run([segment]), target.eager([segment])
    assert out is not None
    assert_close(out.hidden, expected.hidden)
    assert_close(out.features, expected.features)
    assert torch.equal(other.data, neighbour)
    logits = target.logits(out.hidden)
    assert logits.shape == (rows, target.config.vocab_size)
    assert_close(logits[-1], target.logits(out.hidden[-1:])[0])


def test_long_chunks_are_left_to_matrix_products_unless_bits_count(monkeypatch: pytest.MonkeyPatch) -> None:
    target = target_of("llama")
    (cache,) = caches_with(target, (20,), (900,))
    segment = chunk(cache, 200)
    assert kernels_of(target).run([segment]) is not None
    monkeypatch.setattr(compiled_passes, "WIDE_PAIRS", 200 * 220 - 1)
    assert kernels_of(target).run([segment]) is None
    assert kernels_of(target).run([chunk(cache, 96)]) is not None
    monkeypatch.setattr(target, "rows", ONE_SHAPE)
    assert kernels_of(target).run([segment]) is not None


def test_what_static_inputs_cannot_say_is_left_to_plain_torch() -> None:
    target = target_of("llama")
    (cache,) = caches_with(target, (20,), (900,))
    rows = LONGEST + 1
    visible = np.eye(rows, dtype=bool)
    visible[:, 0] = True
    star = Segment(cache, random_tokens(rows), np.minimum(np.arange(rows), 1).astype(np.int32), visible)
    assert kernels_of(target).run([star]) is None
    assert_close(target.forward([star]).hidden, target.eager([star]).hidden)


def test_without_numba_plain_torch_does_it(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setitem(sys.modules, "dartspec.services.verifier.cpu_kernels", None)
    with caplog.at_level(logging.INFO):
        target = target_of("llama")
    assert target.fast is None
    assert "without compiled loops" in caplog.text
    (cache,) = caches_with(target, (20,), (300,))
    assert torch.isfinite(target.forward([chunk(cache, 3)]).hidden).all()


def test_heads_of_odd_size_are_left_to_plain_torch() -> None:
    assert target_of("llama_three_heads", dtype=torch.bfloat16).fast is None  # 6 elements are 3 pairs


def test_loops_that_compute_something_else_are_not_used(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from dartspec.services.verifier import cpu_kernels

    class Blind(cpu_kernels.CpuKernels):
        """Attends to nothing."""

        def attend(self, inputs: Inputs, index: int, queries: torch.Tensor) -> torch.Tensor:
            return torch.zeros_like(queries).flatten(1)

    target = target_of("llama")
    assert relative_error(target, kernels_of(target)) < 1e-5
    monkeypatch.setattr(cpu_kernels, "CpuKernels", Blind)
    assert compiled(target) is None
    assert "relative error" in caplog.text
    assert target.pool.taken == 0


def test_a_long_prefix_is_read_to_its_end() -> None:
    """Attention against sums in float64, at lengths around the blocks of keys."""
    target = target_of("llama")
    c = target.config
    kernels = kernels_of(target).kernels
    generator = torch.Generator().manual_seed(3)
    for length in (0, 1, 15, 63, 64, 65, 127, 128, 500):
        cache = target.new_cache(512)
        cache.data.normal_(generator=generator)
        cache.length = length
        inputs = Inputs(Shape(1, 1, TILE), target.norm)
        inputs.fill([_single(cache)])
        queries = 5 * torch.randn(1, c.heads, c.head_dim, generator=generator)
        got = kernels.attend(inputs, 2, queries).view(c.heads, c.head_dim)
        keys, values = cache.data[2, :, :, : length + 1].double()
        for head in range(c.heads):
            shared = head // (c.heads // c.kv_heads)
            scores = keys[shared] @ queries[0, head].double() / math.sqrt(c.head_dim)
            expected = torch.softmax(scores, 0) @ values[shared]
            assert torch.allclose(got[head].double(), expected, atol=3e-6), (length, head)
        cache.release()


def _single(cache: KVCache) -> Segment:
    return Segment(cache, [3], np.zeros(1, np.int32), np.ones((1, 1), bool))


def test_a_compiler_that_fails_stops_nothing(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    from dartspec.services.verifier import cpu_kernels

    def broken(*_: object) -> None:
        raise RuntimeError("no such processor")

    monkeypatch.setattr(cpu_kernels, "attention_loop", broken)
    assert target_of("llama").fast is None
    assert "no such processor" in caplog.text
