"""A pass over static inputs gives what the plain way gives, for any mix of rows, and its padding leaves no trace."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from bench.gpu_correctness import graphs_for
from bench.plain_kernels import PlainKernels
from dartspec.services.verifier.attention import Segment, causal_rows
from dartspec.services.verifier.graphs import MOST_ROWS, Graphs, captured, probe, shapes
from dartspec.services.verifier.kv_cache import KVCache
from dartspec.services.verifier.loader import target_from_model
from dartspec.services.verifier.static_inputs import LONGEST, Inputs, Shape, items_needed, representable, visible_words
from dartspec.services.verifier.static_pass import static_pass
from dartspec.services.verifier.target import Target
from dartspec.services.verifier.tree import depths, visible_rows
from tests.unit.verifier.test_target import (
    assert_close,
    branching_tree,
    invariant_target,
    model_of,
    random_tokens,
    sequence,
    target_of,
)


def chunk(cache: KVCache, rows: int, seed: int = 1) -> Segment:
    return Segment(cache, random_tokens(rows, seed), np.arange(rows, dtype=np.int32), causal_rows(rows))


def tree_of(cache: KVCache, nodes: int, seed: int = 3) -> Segment:
    tree = branching_tree(seed, nodes)
    return Segment(cache, [5, *tree.token_ids.tolist()], depths(tree), visible_rows(tree))


def caches_with(target: Target, lengths: Sequence[int], capacities: Sequence[int]) -> list[KVCache]:
    """Sessions of these lengths, in slabs of several capacities."""
    caches = [target.new_cache(capacity) for capacity in capacities]
    for number, (cache, length) in enumerate(zip(caches, lengths, strict=True)):
        for start in range(0, length, 64):
            sequence(target, cache, random_tokens(length, number)[start : start + 64])
    return caches


def mixed(target: Target) -> list[Segment]:
    """A tree, a single token, the first chunk of a prompt, a later one, and a tree of another size."""
    caches = caches_with(target, (150, 40, 0, 33, 7), (300, 700, 300, 1000, 300))
    return [
        tree_of(caches[0], 24),
        chunk(caches[1], 1),
        chunk(caches[2], 11),
        chunk(caches[3], 9),
        tree_of(caches[4], 5, seed=8),
    ]


@pytest.mark.parametrize("name", ["llama_biases", "llama_three_heads", "qwen2", "qwen3", "llama_no_groups"])
@pytest.mark.parametrize("shape", [Shape(52, 10, 16), Shape(64, 20, 4), Shape(128, 64, 16)])
def test_a_mixed_pass_is_that_of_the_plain_way(name: str, shape: Shape) -> None:
    target = target_of(name)
    segments = mixed(target)
    inputs = Inputs(shape, target.norm)
    inputs.fill(segments)
    out = static_pass(target, inputs, PlainKernels(target))
    expected = target.eager(segments)
    rows = len(expected.hidden)
    assert_close(out.hidden[:rows], expected.hidden)
    assert_close(out.features[:rows], expected.features)


def test_keys_and_values_lie_where_the_plain_way_puts_them_and_nowhere_else() -> None:
    target = target_of("qwen3")
    segments = mixed(target)
    slabs = list({id(segment.cache.slab): segment.cache.slab for segment in segments}.values())
    for slab in slabs:
        slab.data[slab.data == 0] = 7.0  # what must stay as it is
    before = [slab.data.clone() for slab in slabs]
    target.eager(segments)
    plain = [slab.data.clone() for slab in slabs]
    for slab, data in zip(slabs, before, strict=True):
        slab.data.copy_(data)
    inputs = Inputs(Shape(128, 64, 16), target.norm)
    inputs.fill(segments)
    static_pass(target, inputs, PlainKernels(target))
    for slab, expected, data in zip(slabs, plain, before, strict=True):
        assert_close(slab.data, expected)
        assert torch.equal(slab.data == data, expected == data)


def test_padding_alone_changes_no_slot_and_a_used_block_forgets_its_last_pass() -> None:
    target = target_of("llama")
    segments = mixed(target)
    inputs = Inputs(Shape(64, 20, 16), target.norm)
    kernels = PlainKernels(target)
    inputs.fill(segments)
    static_pass(target, inputs, kernels)
    slabs = [segment.cache.slab for segment in segments]
    before = [slab.data.clone() for slab in slabs]
    inputs.fill(())
    assert bool(torch.isfinite(static_pass(target, inputs, kernels).hidden).all())
    inputs.fill(segments[1:2])
    out = static_pass(target, inputs, kernels)
    assert all(torch.equal(slab.data, data) for slab, data in zip(slabs, before, strict=True))
    assert_close(out.hidden[:1], target.eager(segments[1:2]).hidden)


def test_a_hidden_row_stays_hidden() -> None:
    """Hiding a row of a tree changes those that saw it and no others."""
    target = target_of("llama")
    (cache,) = caches_with(target, (20,), (300,))
    segment = tree_of(cache, 12)
    inputs, kernels = Inputs(Shape(16, 4, 16), target.norm), PlainKernels(target)

    def hidden(segment: Segment) -> torch.Tensor:
        inputs.fill([segment])
        return static_pass(target, inputs, kernels).hidden[: segment.rows].clone()

    base = hidden(segment)
    for row in range(1, segment.rows):
        visible = segment.visible.copy()
        visible[row, 0] = False
        changed = (hidden(Segment(cache, segment.token_ids, segment.depth, visible)) - base).abs().amax(-1) > 1e-4
        assert changed.numpy().tolist() == segment.visible[:, row].tolist()


@pytest.mark.parametrize("rows", [LONGEST, LONGEST + 1, 2 * LONGEST + 60])
def test_a_chunk_longer_than_a_rows_words_is_several_parts(rows: int) -> None:
    target = invariant_target(torch.float32)
    (cache,) = caches_with(target, (30,), (900,))
    segment = Segment(cache, random_tokens(rows, 5), np.arange(rows, dtype=np.int32), causal_rows(rows))
    inputs = Inputs(Shape(rows, items_needed([segment], 16), 16), target.norm)
    inputs.fill([segment])
    assert_close(static_pass(target, inputs, PlainKernels(target)).hidden, target.eager([segment]).hidden)


def test_visible_words_hold_a_bit_a_row() -> None:
    visible = np.random.default_rng(0).random((LONGEST, LONGEST)) < 0.5
    words = visible_words(visible)
    for row, column in [(0, 0), (3, 63), (3, 64), (200, 255), (255, 127)]:
        assert bool(words[row, column // 64] >> (column % 64) & 1) == visible[row, column]
    assert sum(int(word).bit_count() for word in words.astype(np.uint64).ravel()) == visible.sum()


def test_a_pass_runs_in_the_smallest_graph_that_holds_it() -> None:
    target = target_of("qwen3")
    segments = mixed(target)  # 25 + 1 + 11 + 9 + 6 rows; 2 + 1 + 1 + 1 + 1 pieces of 16 rows, 7 + 1 + 3 + 3 + 2 of 4
    wanted = [Shape(8, 8, 4), Shape(64, 5, 16), Shape(64, 6, 16), Shape(64, 16, 4), Shape(128, 16, 16), Shape(1, 1, 4)]
    graphs = graphs_for(target, wanted)
    assert len(graphs) == len(wanted)
    assert graphs.shape_of(segments) == Shape(64, 6, 16)
    assert graphs.shape_of(segments[1:2]) == Shape(1, 1, 4)
    assert graphs.shape_of(segments[1:2] * 2) == Shape(8, 8, 4)
    assert graphs.shape_of(segments * 2) == Shape(128, 16, 16)
    assert graphs.shape_of(segments * 3) is None
    assert graphs.run(segments * 3) is None


def test_a_long_tree_runs_without_a_graph() -> None:
    target = target_of("llama")
    (cache,) = caches_with(target, (5,), (900,))
    star = np.eye(LONGEST + 1, dtype=bool)
    star[:, 0] = True
    depth = np.minimum(np.arange(LONGEST + 1), 1).astype(np.int32)
    segment = Segment(cache, [1] * (LONGEST + 1), depth, star)
    assert not representable(segment)
    assert graphs_for(target, [Shape(512, 64, 16)]).run([segment]) is None


def test_a_result_is_not_overwritten_by_the_next_pass() -> None:
    target = target_of("qwen3")
    segments = mixed(target)
    graphs = graphs_for(target, [Shape(64, 8, 16)])
    first = graphs.run(segments)
    assert first is not None
    kept = first.hidden.clone(), first.features.clone()
    assert graphs.run(segments[2:4]) is not None
    assert torch.equal(first.hidden, kept[0])
    assert torch.equal(first.features, kept[1])


@pytest.mark.parametrize(
    ("group", "sessions", "nodes"), [(4, 64, 59), (1, 1, 8), (3, 5, 1024), (8, 256, 59), (7, 9, 0)]
)
def test_every_common_pass_has_a_shape_and_their_number_is_bounded(group: int, sessions: int, nodes: int) -> None:
    found = shapes(group, sessions, nodes)
    assert len(found) == len(set(found)) <= 48
    assert max(shape.rows for shape in found) <= MOST_ROWS
    tiles = sorted({shape.tile for shape in found})
    padded = 1 << (group - 1).bit_length()
    assert [tile * padded for tile in tiles] == [16, 64]

    def holds(counts: Sequence[int]) -> bool:
        rows = sum(counts)
        return any(s.rows >= rows and s.items >= sum(-(-count // s.tile) for count in counts) for s in found)

    for number in range(1, sessions + 1):
        assert holds([1] * number)
    assert holds([512])  # a chunk of a prompt
    tree = min(nodes, LONGEST - 1) + 1
    for number in range(1, sessions + 1):
        if number * tree <= MOST_ROWS:
            assert holds([tree] * number), number
            assert holds([tree, *[1] * (number - 1)])


def test_the_probe_tells_a_wrong_graph_from_a_right_one() -> None:
    target = target_of("qwen3")

    class Blind(PlainKernels):
        """Attends to nothing."""

        def attend(self, inputs: Inputs, index: int, queries: torch.Tensor) -> torch.Tensor:
            return torch.zeros_like(queries).flatten(1)

    wanted = [Shape(8, 4, 16)]
    right = graphs_for(target, wanted)
    assert probe(target, right)[0] < 1e-4
    wrong = Graphs(target, Blind(target), wanted, lambda body: (lambda: None, body()))
    assert probe(target, wrong)[0] > 0.1
    assert target.pool.taken == 0


def test_the_probe_stays_within_a_short_context() -> None:
    target = target_from_model(model_of("llama"), "short", context_length=64).target
    assert probe(target, graphs_for(target, [Shape(8, 4, 16)]))[0] < 1e-4


def test_a_processor_has_no_graphs() -> None:
    target = target_of("llama")
    target.prepare(4, 59)
    assert not isinstance(target.fast, Graphs)


def test_where_graphs_fail_passes_run_without(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("no such kernel")

    monkeypatch.setattr("dartspec.services.verifier.graphs.Graphs", broken)
    pytest.importorskip("triton")
    monkeypatch.setattr("dartspec.services.verifier.graphs.cuda_capture", lambda: None)
    assert captured(target_of("llama"), 4, 59) is None
    assert "no such kernel" in caplog.text
