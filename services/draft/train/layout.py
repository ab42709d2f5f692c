"""Which rows a packed pass has, where each stands, and which keys each may see.

Several texts share a pass. Prefix n of a text means: x[0..n-1] processed, x[n] pending. Its group is clean position
n-1 (offset 1) and MASK positions n .. n+d-2 (offsets 2..d). Keys are the clean positions of all texts and the MASK
positions of all groups; only the wanted rows of groups are queries.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Layout:
    """Rows of one pass; C clean positions and G groups in all, R wanted rows, d offsets.

    lengths: clean positions of each text. counts: groups of each text. prefixes: int64 [G], in the order of the texts.
    row_group, row_offset: int64 [R], the group of each wanted row and its place in it, 0 .. d-1, in ascending order.
    window: clean positions that a row sees at most, the last ones; 0: all.
    """

    lengths: tuple[int, ...]
    counts: tuple[int, ...]
    prefixes: Tensor
    row_group: Tensor
    row_offset: Tensor
    depth: int
    window: int = 0

    @property
    def row_counts(self) -> list[int]:
        """Wanted rows of each text."""
        bounds = torch.tensor([0, *self.counts]).cumsum(0)
        places = torch.searchsorted(self.row_group.cpu(), bounds)
        return places.diff().tolist()

    def group_text(self) -> Tensor:
        """Number of the text of each group: int64 [G]."""
        return torch.repeat_interleave(
            torch.arange(len(self.counts), device=self.prefixes.device),
            torch.tensor(self.counts, device=self.prefixes.device),
        )

    def last_clean(self) -> Tensor:
        """Index among all clean positions of each group's own, position n-1 of its text: int64 [G]."""
        starts = torch.tensor([0, *self.lengths[:-1]], device=self.prefixes.device).cumsum(0)
        return starts[self.group_text()] + self.prefixes - 1


def make_layout(prefixes: Sequence[Tensor], wanted: Tensor, window: int = 0) -> Layout:
    """Layout of texts with `prefixes` (int64 [G_i] each, every n >= 1), clean positions only as far as one is needed.

    wanted: bool [sum of G_i, d], in the order of the texts and their prefixes, on the device of the pass.
    """
    rows = wanted.nonzero()
    return Layout(
        tuple(int(chosen.max()) for chosen in prefixes),
        tuple(len(chosen) for chosen in prefixes),
        torch.cat(list(prefixes)).to(wanted.device),
        rows[:, 0],
        rows[:, 1],
        wanted.shape[1],
        window,
    )


def clean_positions(layout: Layout) -> Tensor:
    """Position of each clean key in its text: int64 [C]."""
    return torch.cat([torch.arange(length, device=layout.prefixes.device) for length in layout.lengths])


def row_positions(layout: Layout) -> Tensor:
    """Position of each wanted row: int64 [R]. MASK rows continue their own prefix: n, n+1, ..."""
    return layout.prefixes[layout.row_group] - 1 + layout.row_offset


def mask_positions(layout: Layout) -> Tensor:
    """Position of each MASK key: int64 [G, d-1]."""
    return layout.prefixes[:, None] + torch.arange(layout.depth - 1, device=layout.prefixes.device)


def visible_before(layout: Layout) -> Tensor:
    """End of the clean positions of its text that each wanted row sees: int64 [R]."""
    return layout.prefixes[layout.row_group]


def visible_from(layout: Layout) -> Tensor:
    """The first clean position of its text that each wanted row sees: int64 [R]."""
    before = visible_before(layout)
    return (before - layout.window).clamp(min=0) if layout.window else torch.zeros_like(before)


def own_masks_visible(offsets: Tensor, masks: int) -> Tensor:
    """Which MASK keys of its own group a row at `offsets` [R] sees, those up to itself: bool [R, d-1]."""
    return torch.arange(1, masks + 1, device=offsets.device) <= offsets[:, None]


def visibility(layout: Layout) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
    """Whether row `q` sees key `k`, as FlexAttention's mask_mod; keys are all clean positions, then all MASK keys."""
    device, masks = layout.prefixes.device, layout.depth - 1
    group_text, groups = layout.group_text(), len(layout.prefixes)
    clean_text = torch.repeat_interleave(
        torch.arange(len(layout.lengths), device=device), torch.tensor(layout.lengths, device=device)
    )
    key_text = torch.cat((clean_text, group_text.repeat_interleave(masks)))
    key_position = torch.cat((clean_positions(layout), torch.zeros(groups * masks, dtype=torch.int64, device=device)))
    nobody = torch.full_like(clean_text, -1)
    key_group = torch.cat((nobody, torch.arange(groups, device=device).repeat_interleave(masks)))
    own = own_masks_visible(torch.arange(layout.depth, device=device), masks)  # [d, d-1]
    key_mask = torch.cat((torch.zeros_like(clean_text), torch.arange(masks, device=device).repeat(groups)))
    row_text, row_group, row_offset = group_text[layout.row_group], layout.row_group, layout.row_offset
    since, before = visible_from(layout), visible_before(layout)

    def sees(batch: Tensor, head: Tensor, q: Tensor, k: Tensor) -> Tensor:
        near = (key_position[k] >= since[q]) & (key_position[k] < before[q])
        clean = (key_group[k] < 0) & (key_text[k] == row_text[q]) & near
        return clean | ((key_group[k] == row_group[q]) & own[row_offset[q], key_mask[k]])

    return sees
