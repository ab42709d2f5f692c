"""Attention of one pass: rows of several sessions, each over its own session's keys.

Sessions whose slots lie in one slab share a call. The plan of a pass says which rows those are and what they see; it is
made once and used by every layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from dartspec.services.verifier.kv_cache import SLOT_BLOCK, KVCache, Slab

# Kernels take another path for fewer rows than this, at the end of a block of rows too, and the last bits differ.
ROW_BLOCK = 4
# Segments with more rows than this are attended to one by one: there is enough to do in one, and nothing is padded.
WIDE_ROWS = 96


class Segment(NamedTuple):
    """The rows of one session in a pass; they are written behind the cache's committed prefix.

    token_ids: one a row. depth: position of each row counted from the prefix's end, int32 [rows].
    visible: which rows of the segment a row attends to besides the prefix, bool [rows, rows].
    """

    cache: KVCache
    token_ids: list[int]
    depth: NDArray[np.int32]
    visible: NDArray[np.bool_]

    @property
    def rows(self) -> int:
        """Rows of the segment."""
        return len(self.token_ids)


@dataclass(frozen=True)
class Store:
    """Where rows of a pass go in one slab: ``rows`` of the pass (None: all) to (slot, position), each int64 [n]."""

    slab: Slab
    rows: torch.Tensor | None
    slot: torch.Tensor
    position: torch.Tensor


@dataclass(frozen=True)
class Call:
    """One attention call: ``sessions`` neighbouring slots of a slab, each with as many rows of queries.

    gather: the pass's row of each query, int64 [sessions * rows], any row where there is none; None: the rows in order.
    back: the call's queries that are rows of the pass, and which, int64 each; None: all in order.
    mask: what is added to the scores, [sessions, 1, rows, keys]; None: every row sees every key.
    """

    slab: Slab
    first: int
    sessions: int
    rows: int
    keys: int
    gather: torch.Tensor | None
    back: tuple[torch.Tensor, torch.Tensor] | None
    mask: torch.Tensor | None


@dataclass(frozen=True)
class Plan:
    """What the layers of a pass need to know."""

    stores: list[Store]
    calls: list[Call]


def plan(segments: Sequence[Segment], padded: bool, like: torch.Tensor) -> Plan:
    """Plan of a pass over ``segments``, whose rows follow one another.

    padded: numbers of keys and of queries are whole blocks, so that a row's result does not depend on its company.
    like: masks get its type and device.
    """
    starts = np.cumsum([0, *(segment.rows for segment in segments)])
    total = int(starts[-1])
    stores, calls = [], []
    by_slab: dict[int, list[int]] = {}
    for number, segment in enumerate(segments):
        by_slab.setdefault(id(segment.cache.slab), []).append(number)
    for numbers in by_slab.values():
        numbers.sort(key=lambda number: segments[number].cache.slot)
        stores.append(_store(segments, starts, numbers, len(by_slab) == 1, like.device))
        for group in _groups(segments, numbers):
            calls.append(_call(segments, starts, group, total, padded, like))
    return Plan(stores, calls)


def _store(
    segments: Sequence[Segment], starts: NDArray[np.int64], numbers: list[int], alone: bool, device: torch.device
) -> Store:
    order = sorted(numbers)  # the pass's order, so that all rows of a lone slab need no index
    slots = np.repeat([segments[n].cache.slot for n in order], [segments[n].rows for n in order])
    positions = np.concatenate([segments[n].cache.length + np.arange(segments[n].rows) for n in order])
    rows = None if alone else np.concatenate([np.arange(starts[n], starts[n + 1]) for n in order])
    return Store(
        segments[order[0]].cache.slab,
        None if rows is None else _tensor(rows, device),
        _tensor(slots, device),
        _tensor(positions, device),
    )


def _groups(segments: Sequence[Segment], numbers: list[int]) -> list[list[int]]:
    """Segments that share a call: single rows, and trees; long chunks of a prompt go alone."""
    single = [number for number in numbers if segments[number].rows == 1]
    trees = [number for number in numbers if 1 < segments[number].rows <= WIDE_ROWS]
    wide = [[number] for number in numbers if segments[number].rows > WIDE_ROWS]
    return [group for group in (single, trees, *wide) if group]


def _call(
    segments: Sequence[Segment],
    starts: NDArray[np.int64],
    group: list[int],
    total: int,
    padded: bool,
    like: torch.Tensor,
) -> Call:
    caches = [segments[number].cache for number in group]
    first, last = caches[0].slot, caches[-1].slot
    sessions = last - first + 1
    rows = max(segments[number].rows for number in group)
    keys = max(segments[number].cache.length + segments[number].rows for number in group)
    if padded:
        rows = -(-rows // ROW_BLOCK) * ROW_BLOCK
        keys = -(-keys // SLOT_BLOCK) * SLOT_BLOCK
    seen = np.zeros((sessions, rows, keys), dtype=bool)
    seen[:, :, 0] = True  # a row that saw nothing would be NaN
    gather = np.zeros((sessions, rows), dtype=np.int64)
    real = np.zeros((sessions, rows), dtype=bool)
    for number in group:
        segment = segments[number]
        at, count, prefix = segment.cache.slot - first, segment.rows, segment.cache.length
        seen[at, :count, :prefix] = True
        seen[at, :count, prefix : prefix + count] = segment.visible
        if not prefix:
            seen[at, :count, 0] = segment.visible[:, 0]
        gather[at, :count] = np.arange(starts[number], starts[number + 1])
        real[at, :count] = True
    in_order = gather.size == total and bool((gather.ravel() == np.arange(total)).all())
    back = np.flatnonzero(real.ravel())
    mask = None
    if not seen.all():
        allowed = torch.from_numpy(seen[:, None]).to(like.device)
        mask = torch.zeros(allowed.shape, dtype=like.dtype, device=like.device).masked_fill_(~allowed, float("-inf"))
    return Call(
        caches[0].slab,
        first,
        sessions,
        rows,
        keys,
        None if in_order else _tensor(gather.ravel(), like.device),
        None if in_order else (_tensor(back, like.device), _tensor(gather.ravel()[back], like.device)),
        mask,
    )


def _tensor(values: NDArray[np.int64], device: torch.device) -> torch.Tensor:
    return torch.from_numpy(values.astype(np.int64)).to(device)


def attend(
    plan: Plan, layer: int, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float
) -> torch.Tensor:
    """Write a layer's keys and values into the caches and attend.

    queries [rows, heads, head_dim]; keys and values [rows, kv_heads, head_dim] -> [rows, heads * head_dim].
    """
    for store in plan.stores:
        chosen = (keys, values) if store.rows is None else (keys[store.rows], values[store.rows])
        # Indices around a slice: the result's first axis is the rows.
        store.slab.data[layer, 0][store.slot, :, store.position] = chosen[0]
        store.slab.data[layer, 1][store.slot, :, store.position] = chosen[1]
    out: torch.Tensor | None = None
    for call in plan.calls:
        rows = queries if call.gather is None else queries[call.gather]
        heads, head_dim = rows.shape[1:]
        stored = call.slab.data[layer, :, call.first : call.first + call.sessions, :, : call.keys]
        flat = _attend(rows, call, stored[0], stored[1], scale).reshape(call.sessions * call.rows, heads * head_dim)
        if call.back is None:
            return flat
        if out is None:
            out = flat.new_empty(queries.shape[0], heads * head_dim)
        out[call.back[1]] = flat[call.back[0]]
    assert out is not None
    return out


def _attend(rows: torch.Tensor, call: Call, keys: torch.Tensor, values: torch.Tensor, scale: float) -> torch.Tensor:
    """rows [sessions * rows, heads, head_dim], keys and values [sessions, kv_heads, keys, head_dim] -> as rows."""
    _, heads, head_dim = rows.shape
    kv_heads = keys.shape[1]
    if call.rows == 1 and rows.element_size() < 4:
        # Heads that share keys are the rows of one product. Kernels for short floats lay the keys out anew for every
        # head: with 9 heads on 3 this takes a fifth to a quarter of the time, for the same bits. (Not so in float32.)
        grouped = rows.view(call.sessions, kv_heads, heads // kv_heads, head_dim)
        return F.scaled_dot_product_attention(grouped, keys, values, attn_mask=call.mask, scale=scale)
    mixed = F.scaled_dot_product_attention(
        rows.view(call.sessions, call.rows, heads, head_dim).transpose(1, 2),
        keys,
        values,
        attn_mask=call.mask,
        scale=scale,
        enable_gqa=heads != kv_heads,
    )
    return mixed.transpose(1, 2)


def causal_rows(rows: int) -> NDArray[np.bool_]:
    """Rows that are consecutive tokens: bool [rows, rows]."""
    return np.tri(rows, dtype=bool)
