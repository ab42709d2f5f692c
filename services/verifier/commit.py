"""After a pass: the rows that stay, of all its sessions at once. Keys, values and features of the others are lost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from dartspec.services.draft.coin import Coin
from dartspec.services.draft.propose import DraftInput, Proposer
from dartspec.services.verifier import kv_cache
from dartspec.services.verifier.features import PREFIX_BLOCK, WAITING_ROWS, DraftRows
from dartspec.services.verifier.session import Session


class Kept(NamedTuple):
    """Rows of a session's part of a pass that stay, rising; the part begins at row ``start`` of the pass."""

    session: Session
    start: int
    rows: Sequence[int]


class _Writes:
    """Rows of features that go to a memory of rows: their places there, and which rows of the pass they are."""

    def __init__(self) -> None:
        self.places: list[int] = []
        self.rows: list[int] = []

    def add(self, place: int, row: int) -> None:
        """One more."""
        self.places.append(place)
        self.rows.append(row)

    def carry_out(self, memory: torch.Tensor, features: torch.Tensor) -> None:
        """To memory [places, width], from features [rows of the pass, width]."""
        if not self.places:
            return
        if memory.device.type == "cpu":  # by numpy, which takes a fraction of the time for few rows
            _bits(memory)[self.places] = _bits(features)[self.rows]
            return
        place, row = torch.tensor([self.places, self.rows], device=memory.device)
        memory.index_copy_(0, place, features.index_select(0, row))


def keep(kept: Sequence[Kept], features: torch.Tensor, proposer: Proposer | None) -> None:
    """Put the rows behind what each session has committed. features [rows of the pass, width].

    Features wait for the draft head; where too many would, all but the last are handed over, for that session and all
    others with half as many in one pass of the head.
    """
    kv_cache.commit((each.session.cache, each.rows) for each in kept)
    drafting = [(each, store) for each in kept if (store := each.session.features) is not None]
    if proposer is None or not drafting:
        return
    writes: dict[DraftRows, tuple[_Writes, _Writes]] = {}  # by region: rows that wait, and ends of blocks
    late: list[DraftInput] = []
    most = max(store.count + len(each.rows) for each, store in drafting)
    # A pass of the head over few rows costs nearly what one over many does, so who waits with many goes along.
    allowed = WAITING_ROWS if most <= WAITING_ROWS else WAITING_ROWS // 2
    for each, store in drafting:
        if store.rows not in writes:
            writes[store.rows] = _Writes(), _Writes()
        waiting, ends = writes[store.rows]
        first, rows, count = each.start, each.rows, len(each.rows)
        position = store.start + each.session.n - count  # of the first row, in the region
        for at in range(PREFIX_BLOCK - 1 - position % PREFIX_BLOCK, count, PREFIX_BLOCK):
            ends.add((position + at) // PREFIX_BLOCK, first + rows[at])
        if store.count + count > allowed:
            all_but_last = features[[first + row for row in rows[:-1]]]
            late.append(_all_but_last(each.session, store.waiting, all_but_last))
            rows, store.count = rows[-1:], 0
        place = store.unit * WAITING_ROWS + store.count  # counted through all units
        for at, row in enumerate(rows):
            waiting.add(place + at, first + row)
        store.count += len(rows)
    if late:
        proposer.append(late)
    for memory, (waiting, ends) in writes.items():
        waiting.carry_out(memory.waiting.flatten(0, 1), features)
        ends.carry_out(memory.ends, features)


def _bits(rows: torch.Tensor) -> NDArray[np.generic]:
    """A tensor in main memory as numpy sees it, which knows no bfloat16."""
    return (rows.view(torch.int16) if rows.dtype == torch.bfloat16 else rows).numpy()


def _all_but_last(session: Session, waiting: torch.Tensor, new: torch.Tensor) -> DraftInput:
    """Input for the head of all positions but the last, from which the next draft starts."""
    assert session.head_cache is not None
    features = torch.cat((waiting, new))
    first = session.head_cache.length
    return DraftInput(session.head_cache, features, torch.tensor(session.tokens[first + 1 : first + 1 + len(features)]))


def draft_input(session: Session, share_noise: bool) -> DraftInput:
    """What the head has not seen of a session; with ``share_noise`` also the coin of one that samples."""
    store = session.features
    assert store is not None
    first = store.cache.length
    tokens = torch.tensor(session.tokens[first + 1 : first + 1 + store.count])
    temperature = session.opened.sampling.temperature
    coin = Coin(session.opened.seed, temperature, len(session.tokens)) if share_noise and temperature > 0.0 else None
    return DraftInput(store.cache, store.waiting, tokens, coin)
