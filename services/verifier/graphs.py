"""Passes of common shapes as CUDA graphs: one launch instead of the thousand that a small pass spends its time on.

Captured before readiness, a bounded number of them; a pass runs in the smallest graph that holds it, and one that none
holds runs as it would without graphs.
"""

from __future__ import annotations

import logging
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch

from dartspec.services.verifier.attention import Segment, causal_rows
from dartspec.services.verifier.kv_cache import KVCache
from dartspec.services.verifier.scheduler import PREFILL_ROWS
from dartspec.services.verifier.static_inputs import Inputs, Shape, items_needed, representable
from dartspec.services.verifier.static_pass import Kernels, static_pass
from dartspec.services.verifier.target import FastPasses, Pass, Target

log = logging.getLogger(__name__)

MOST_ROWS = 1024
# Scores of one piece of a segment that a kernel holds at a time: query rows times the heads that share keys.
_SMALL_TILE, _TILE = 16, 64
# Relative error of the logits above which passes are wrong rather than rounded otherwise; a wrong mask gives about 1.
TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.1}
_REPEATS = 7

Capture = Callable[[Callable[[], Pass]], tuple[Callable[[], None], Pass]]


def shapes(group: int, max_sessions: int, max_nodes: int) -> list[Shape]:
    """Shapes worth a graph. ``group``: heads that share a key head.

    Single tokens of 1, 2, 4, ... sessions; and rows of trees and short chunks in powers of two, with few pieces (one
    tree) up to many (a session with a node or two each).
    """
    group = _power_above(group)
    small, tile = max(_SMALL_TILE // group, 1), max(_TILE // group, 1)
    sessions = _powers(1, _power_above(min(max_sessions, MOST_ROWS)))
    found = {Shape(count, count, small) for count in sessions}
    for rows in _powers(8, MOST_ROWS):
        fewest = -(-rows // tile)
        most = min(max(rows // 2, fewest), fewest + sessions[-1])
        found |= {Shape(rows, items, tile) for items in {*_powers(_power_above(fewest), most), most}}
    largest = _power_above(sessions[-1] * (max_nodes + 1) + PREFILL_ROWS)
    return sorted(shape for shape in found if shape.rows <= largest)


class Graphs:
    """Captured passes of one target, as it is: `rows` and `feature_layers` must not change afterwards."""

    def __init__(self, target: Target, kernels: Kernels, wanted: Iterable[Shape], capture: Capture) -> None:
        self._captured: dict[Shape, tuple[Inputs, Callable[[], None], Pass]] = {}
        for shape in sorted(wanted, reverse=True):  # the largest first: the others find their memory in its
            inputs = Inputs(shape, target.norm)
            replay, out = capture(lambda inputs=inputs: static_pass(target, inputs, kernels))  # type: ignore[misc]
            self._captured[shape] = (inputs, replay, out)
        self._by_size = sorted(self._captured)

    def __len__(self) -> int:
        return len(self._captured)

    def shape_of(self, segments: Sequence[Segment]) -> Shape | None:
        """The smallest captured shape that holds a pass over ``segments``."""
        rows = sum(segment.rows for segment in segments)
        fitting = (s for s in self._by_size if s.rows >= rows and s.items >= items_needed(segments, s.tile))
        shape = next(fitting, None)
        return shape if all(representable(segment) for segment in segments) else None

    @torch.inference_mode()
    def run(self, segments: Sequence[Segment]) -> Pass | None:
        """As `Target.forward`; None when no graph holds the pass."""
        shape = self.shape_of(segments)
        if shape is None:
            return None
        inputs, replay, out = self._captured[shape]
        inputs.fill(segments)
        replay()
        rows = sum(segment.rows for segment in segments)
        # Copies, because the next pass writes where this one did.
        return Pass(out.hidden[:rows].clone(), out.features[:rows].clone())


def cuda_capture() -> Capture:
    """Captures into graphs that share one memory pool."""
    stream, pool = torch.cuda.Stream(), torch.cuda.graph_pool_handle()

    def capture(body: Callable[[], Pass]) -> tuple[Callable[[], None], Pass]:
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            body()  # kernels are compiled and libraries set up outside of the capture
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
            out = body()
        return graph.replay, out

    return capture


def captured(target: Target, max_sessions: int, max_nodes: int) -> Graphs | None:
    """Graphs for a target on CUDA, if they work there and are worth it; else None, and the log says why."""
    try:
        from dartspec.services.verifier.kernels import TritonKernels

        kernels = TritonKernels(target, target.rope, MOST_ROWS)
        wanted = shapes(target.config.heads // target.config.kv_heads, max_sessions, max_nodes)
        graphs = Graphs(target, kernels, wanted, cuda_capture())
        difference, slower = probe(target, graphs)
    except Exception as error:  # a compiler or driver that does not do it; passes without graphs still work
        log.warning("passes run without CUDA graphs: %s: %s", type(error).__name__, error)
        return None
    if not difference < TOLERANCE[target.dtype] or slower >= 1.0:
        log.warning("passes run without CUDA graphs: relative error %.2g, %.2f times the time", difference, slower)
        return None
    log.info("%d CUDA graphs; a pass of one token takes %.2f of the time without", len(graphs), slower)
    return graphs


def relative_error(target: Target, passes: FastPasses) -> float:
    """Of the logits of a mixed pass, against the plain way."""
    with _sessions(target) as mixed:
        found = passes.run(mixed)
        assert found is not None
        got, expected = (target.logits(out.hidden).float() for out in (found, target.eager(mixed)))
        return float((got - expected).norm() / expected.norm())


def probe(target: Target, passes: FastPasses) -> tuple[float, float]:
    """Relative error of a mixed pass against the plain way, and the time of a single token over the plain way's."""

    def milliseconds(forward: Callable[[Sequence[Segment]], Pass | None], segments: Sequence[Segment]) -> float:
        begin = time.perf_counter()
        out = forward(segments)
        assert out is not None
        out.hidden.cpu()  # waits for the device
        return time.perf_counter() - begin

    with _sessions(target) as mixed:
        single = mixed[1:]
        ratios = [milliseconds(passes.run, single) / milliseconds(target.eager, single) for _ in range(_REPEATS)]
    return relative_error(target, passes), statistics.median(ratios)


@contextmanager
def _sessions(target: Target) -> Iterator[list[Segment]]:
    """A tree and a single token of two sessions."""
    vocabulary = target.config.vocab_size
    caches = [target.new_cache(512) for _ in range(2)]
    try:
        most = len(target.rope[0]) // 2
        prefixes = (min(150, most), min(40, most))
        for cache, length in zip(caches, prefixes, strict=True):
            target.eager([_consecutive(cache, [7 * i % vocabulary for i in range(length)])])
            cache.commit(range(length))
        star = np.eye(6, dtype=bool)
        star[:, 0] = True
        tree = Segment(caches[0], [i % vocabulary for i in range(6)], np.array([0, 1, 1, 1, 1, 1], np.int32), star)
        yield [tree, _consecutive(caches[1], [3 % vocabulary])]
    finally:
        for cache in caches:
            cache.release()


def _consecutive(cache: KVCache, tokens: list[int]) -> Segment:
    rows = len(tokens)
    return Segment(cache, tokens, np.arange(rows, dtype=np.int32), causal_rows(rows))


def _power_above(value: int) -> int:
    return 1 << max(value - 1, 0).bit_length()


def _powers(first: int, last: int) -> list[int]:
    """first, 2 first, 4 first, ... up to last."""
    found = []
    while first <= last:
        found.append(first)
        first *= 2
    return found
