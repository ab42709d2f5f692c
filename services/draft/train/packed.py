"""Many prefixes of one text in one pass (arXiv:2601.19278): clean positions once, a MASK group for each prefix.

Prefix n means: x[0..n-1] processed, x[n] pending. Its group is clean position n-1 (offset 1) and MASK positions
n .. n+d-2 (offsets 2..d). Clean positions are causal; a group sees clean positions 0..n-1 and itself causally; groups
never see each other. Clean keys and values are computed once per text, and only the group rows get outputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dartspec.services.draft.head import DraftHead
from dartspec.services.draft.train.teacher import TextTensors


@dataclass(frozen=True)
class PackedText:
    """A text and the prefixes of it that are trained in this pass: prefixes int64 [G], 1 <= n <= T-1."""

    text: TextTensors
    prefixes: Tensor


def packed_hidden(head: DraftHead, packed: Sequence[PackedText], wanted: Tensor) -> Tensor:
    """Hidden states after the first final norm, [wanted rows, H].

    `wanted` is bool [sum of G, d], in the order of the texts and their prefixes: the (prefix, offset) pairs to compute.
    """
    masks, device = head.config.draft_length, head.fc.weight.device
    lengths = [len(entry.text.tokens) - 1 for entry in packed]  # the last token is only ever a label
    layer_input, residual = head.prefix_rows(
        torch.cat([entry.text.features[:-1] for entry in packed]).to(device),
        torch.cat([entry.text.tokens[1:] for entry in packed]).to(device),
    )
    positions = torch.cat([torch.arange(length) for length in lengths]).to(device)
    keys, values = head.keys_values(layer_input, head.rotation(positions))

    starts = torch.tensor([0, *lengths[:-1]]).cumsum(0)
    counts = [len(entry.prefixes) for entry in packed]
    prefixes = torch.cat([entry.prefixes for entry in packed]).to(device)
    last = prefixes - 1 + torch.repeat_interleave(starts, torch.tensor(counts)).to(device)
    mask_input, mask_residual = head.mask_rows(1)
    mask_rotation = head.rotation((prefixes[:, None] + torch.arange(masks, device=device)).flatten())
    mask_keys, mask_value = head.keys_values(mask_input, mask_rotation)
    mask_keys = mask_keys.unflatten(0, (len(prefixes), masks))
    mask_queries = head.queries(mask_input, mask_rotation).unflatten(0, (len(prefixes), masks))
    last_queries = head.queries(layer_input[last], head.rotation(prefixes - 1))
    queries = torch.cat((last_queries[:, None], mask_queries), 1)  # [groups, d, heads, head_dim]

    mixed = []
    for group_queries, group_keys, key, value, entry in zip(
        queries.split(counts), mask_keys.split(counts), keys.split(lengths), values.split(lengths), packed, strict=True
    ):
        mixed.append(_attend_groups(group_queries, group_keys, mask_value[0], key, value, entry.prefixes.to(device)))
    residuals = torch.cat((residual[last][:, None], mask_residual.expand(len(prefixes), masks, -1)), 1)
    return head.finish(torch.cat(mixed)[wanted], residuals[wanted])


def _attend_groups(
    queries: Tensor, mask_keys: Tensor, mask_value: Tensor, keys: Tensor, values: Tensor, prefixes: Tensor
) -> Tensor:
    """Attention of one text's groups over its clean positions and their own MASK positions: [G, d, heads * D].

    queries [G, d, heads, D]; mask_keys [G, d-1, kv, D]; mask_value [kv, D], equal at all MASK positions;
    keys, values [T, kv, D]; prefixes [G].
    """
    groups, depth, heads, head_dim = queries.shape
    length, kv_heads, _ = keys.shape
    shared = heads // kv_heads
    # [kv, shared, G, d, D]; query heads that share a key head are rows of one product
    arranged = queries.unflatten(2, (kv_heads, shared)).permute(2, 3, 0, 1, 4) * head_dim**-0.5
    clean = (arranged.reshape(kv_heads, -1, head_dim) @ keys.permute(1, 2, 0)).view(
        kv_heads, shared, groups, depth, length
    )
    own = arranged.transpose(1, 2).reshape(kv_heads, groups, shared * depth, head_dim) @ mask_keys.permute(2, 0, 3, 1)
    own = own.view(kv_heads, groups, shared, depth, depth - 1).transpose(1, 2)
    beyond = torch.arange(length, device=keys.device) >= prefixes[:, None]  # [G, T]
    later = torch.ones(depth, depth - 1, dtype=torch.bool, device=keys.device).triu(0)  # row r sees MASKs 1..r
    scores = torch.cat((clean.masked_fill(beyond[:, None], -torch.inf), own.masked_fill(later, -torch.inf)), -1)
    weights = scores.softmax(-1, dtype=torch.float32).to(values.dtype)
    mixed = weights[..., :length].reshape(kv_heads, -1, length) @ values.transpose(0, 1)
    mixed = mixed.view(kv_heads, shared, groups, depth, head_dim)
    mixed = mixed + weights[..., length:].sum(-1, keepdim=True) * mask_value[:, None, None, None]
    return mixed.permute(2, 3, 0, 1, 4).reshape(groups, depth, heads * head_dim)
