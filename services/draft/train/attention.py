"""Attention of a packed pass: FlexAttention with a block mask on CUDA, products text by text on processors.

Both compute what `layout.visibility` says. On a processor a text's rows meet its own keys only, so that nothing is
computed to be masked but what lies behind a prefix.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from dartspec.services.draft.train import layout as rules
from dartspec.services.draft.train.layout import Layout

BACKENDS = ("flex", "segments")


def attend(
    layout: Layout,
    queries: Tensor,
    clean: tuple[Tensor, Tensor],
    masks: tuple[Tensor, Tensor],
    backend: str | None = None,
) -> Tensor:
    """Attention's output [R, heads * D] of the wanted rows.

    queries: [R, heads, D]. clean: keys and values [C, kv, D]. masks: keys [G, d-1, kv, D] and the value [kv, D], which
    is the same at all MASK positions. backend: one of BACKENDS; by default "flex" on CUDA, "segments" elsewhere.
    """
    backend = backend or ("flex" if queries.is_cuda else "segments")
    return {"flex": _flex, "segments": _segments}[backend](layout, queries, clean, masks)


@functools.cache
def _kernel(compiled: bool) -> Any:
    return torch.compile(flex_attention, dynamic=True) if compiled else flex_attention


def _flex(layout: Layout, queries: Tensor, clean: tuple[Tensor, Tensor], masks: tuple[Tensor, Tensor]) -> Tensor:
    mask_keys, mask_value = masks
    groups, each = mask_keys.shape[:2]
    keys = torch.cat((clean[0], mask_keys.flatten(0, 1)))
    values = torch.cat((clean[1], mask_value.expand(groups * each, -1, -1)))
    if torch.is_autocast_enabled(queries.device.type):
        dtype = torch.get_autocast_dtype(queries.device.type)
        queries, keys, values = queries.to(dtype), keys.to(dtype), values.to(dtype)
    block = create_block_mask(rules.visibility(layout), None, None, len(queries), len(keys), device=queries.device)
    mixed = _kernel(queries.is_cuda)(
        queries.transpose(0, 1)[None],
        keys.transpose(0, 1)[None],
        values.transpose(0, 1)[None],
        block_mask=block,
        enable_gqa=queries.shape[1] != keys.shape[1],
    )
    return mixed[0].transpose(0, 1).flatten(1)


def _segments(layout: Layout, queries: Tensor, clean: tuple[Tensor, Tensor], masks: tuple[Tensor, Tensor]) -> Tensor:
    rows, lengths = layout.row_counts, list(layout.lengths)
    since, before = rules.visible_from(layout).split(rows), rules.visible_before(layout).split(rows)
    groups = layout.row_group.split(rows)
    own_visible = rules.own_masks_visible(layout.row_offset, layout.depth - 1).split(rows)
    parts = zip(queries.split(rows), clean[0].split(lengths), clean[1].split(lengths), strict=True)
    return torch.cat(
        [
            _one_text(query, key, value, masks[0][group], masks[1], limits, own)
            for (query, key, value), group, limits, own in zip(
                parts, groups, zip(since, before, strict=True), own_visible, strict=True
            )
        ]
    )


def _one_text(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    mask_keys: Tensor,
    mask_value: Tensor,
    limits: tuple[Tensor, Tensor],
    own: Tensor,
) -> Tensor:
    """One text's rows over its clean positions and, row by row, the MASK keys of their own group.

    queries [R, heads, D]; keys, values [T, kv, D]; mask_keys [R, d-1, kv, D]; limits: first clean position that a row
    sees and the end of those, [R] each; own bool [R, d-1].
    """
    count, heads, head_dim = queries.shape
    length, kv_heads, _ = keys.shape
    shared = heads // kv_heads
    # [kv, R * shared, D]: query heads that share a key head are rows of one product
    arranged = (queries * head_dim**-0.5).unflatten(1, (kv_heads, shared)).transpose(0, 1)
    scores = (arranged.reshape(kv_heads, -1, head_dim) @ keys.permute(1, 2, 0)).view(kv_heads, count, shared, length)
    own_scores = arranged @ mask_keys.permute(2, 0, 3, 1)  # [kv, R, shared, d-1]
    positions, (since, before) = torch.arange(length, device=keys.device), limits
    hidden = (positions >= before[:, None]) | (positions < since[:, None])
    everything = torch.cat(
        (
            scores.masked_fill(hidden[:, None], -torch.inf),
            own_scores.to(scores.dtype).masked_fill(~own[:, None], -torch.inf),
        ),
        -1,
    )
    weights = everything.softmax(-1, dtype=torch.promote_types(torch.float32, queries.dtype)).to(values.dtype)
    mixed = (weights[..., :length].reshape(kv_heads, -1, length) @ values.transpose(0, 1)).view(arranged.shape)
    mixed = mixed + weights[..., length:].sum(-1, keepdim=True) * mask_value[:, None, None]
    return mixed.permute(1, 0, 2, 3).reshape(count, heads * head_dim)
