"""Many prefixes of several texts in one pass (arXiv:2601.19278): clean positions once, a MASK group for each prefix.

Clean positions are causal; a group sees clean positions 0..n-1 of its text and itself causally; groups never see each
other, nor another text. Only the wanted rows of groups get outputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dartspec.services.draft.head import DraftHead
from dartspec.services.draft.train import layout as rules
from dartspec.services.draft.train.attention import attend
from dartspec.services.draft.train.teacher import TextTensors


@dataclass(frozen=True)
class PackedText:
    """A text and the prefixes of it that are trained in this pass: prefixes int64 [G], 1 <= n <= T-1."""

    text: TextTensors
    prefixes: Tensor


def packed_hidden(head: DraftHead, packed: Sequence[PackedText], wanted: Tensor, backend: str | None = None) -> Tensor:
    """Hidden states after the first final norm, [wanted rows, H].

    `wanted` is bool [sum of G, d], in the order of the texts and their prefixes: the (prefix, offset) pairs to compute.
    backend: as in `attention.attend`.
    """
    masks, device = head.config.draft_length, head.fc.weight.device
    prefixes = [entry.prefixes for entry in packed]
    layout = rules.make_layout(prefixes, wanted.to(device), head.config.attention_window)
    shift = int(head.config.shift)
    inputs = [(entry.text, length) for entry, length in zip(packed, layout.lengths, strict=True)]
    layer_input, residual = head.prefix_rows(
        torch.cat([text.features[:length] for text, length in inputs]).to(device),
        torch.cat([text.tokens[shift : length + shift] for text, length in inputs]).to(device),
    )
    clean = head.keys_values(layer_input, head.rotation(rules.clean_positions(layout)))
    mask_input, mask_residual = head.mask_rows(1)
    mask_keys, mask_values = head.keys_values(mask_input, head.rotation(rules.mask_positions(layout).flatten()))

    is_mask = layout.row_offset > 0
    positions, last = rules.row_positions(layout), layout.last_clean()[layout.row_group[~is_mask]]
    queries = torch.cat(
        (
            head.queries(layer_input[last], head.rotation(positions[~is_mask])),
            head.queries(mask_input, head.rotation(positions[is_mask])),
        )
    )
    residuals = torch.cat((residual[last], mask_residual.expand(int(is_mask.sum()), -1)))
    # Clean rows came first; `order` puts every row at its place.
    order = torch.cat(((~is_mask).nonzero()[:, 0], is_mask.nonzero()[:, 0])).argsort()
    own = mask_keys.unflatten(0, (len(layout.prefixes), masks)), mask_values[0]
    return head.finish(attend(layout, queries[order], clean, own, backend), residuals[order])
