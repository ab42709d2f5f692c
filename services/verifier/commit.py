"""After a pass: the rows that stay, of all its sessions at once. Keys, values and features of the others are lost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

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


@dataclass
class _Writes:
    """Rows of features by where they go in the memory of one region: pairs of place and row of the pass."""

    waiting: list[tuple[int, int]]  # places count through all units
    ends: list[tuple[int, int]]  # place is the block


def keep(kept: Sequence[Kept], features: torch.Tensor, proposer: Proposer | None) -> None:
    """Put the rows behind what each session has committed. features [rows of the pass, width].

    Features wait for the draft head; where too many would, all but the last are handed over, for that session and all
    others with half as many in one pass of the head.
    """
    kv_cache.commit((each.session.cache, each.rows) for each in kept)
    drafting = [(each, store) for each in kept if (store := each.session.features) is not None]
    if proposer is None or not drafting:
        return
    writes: dict[DraftRows, _Writes] = {}
    late: list[DraftInput] = []
    most = max(store.count + len(each.rows) for each, store in drafting)
    # A pass of the head over few rows costs nearly what one over many does, so who waits with many goes along.
    allowed = WAITING_ROWS if most <= WAITING_ROWS else WAITING_ROWS // 2
    for each, store in drafting:
        into = writes.setdefault(store.rows, _Writes([], []))
        first, rows = each.start, each.rows
        position = store.start + each.session.n - len(rows)  # of the first row, in the region
        until_end = PREFIX_BLOCK - 1 - position % PREFIX_BLOCK
        into.ends += [
            ((position + at) // PREFIX_BLOCK, first + rows[at]) for at in range(until_end, len(rows), PREFIX_BLOCK)
        ]
        if store.count + len(rows) > allowed:
            all_but_last = features[[first + row for row in rows[:-1]]]
            late.append(_all_but_last(each.session, store.waiting, all_but_last))
            rows, store.count = rows[-1:], 0
        place = store.unit * WAITING_ROWS + store.count
        into.waiting += [(place + at, first + row) for at, row in enumerate(rows)]
        store.count += len(rows)
    if late:
        proposer.append(late)
    for rows_of_region, into in writes.items():
        _write(rows_of_region.waiting.flatten(0, 1), into.waiting, features)
        _write(rows_of_region.ends, into.ends, features)


def _write(memory: torch.Tensor, pairs: Sequence[tuple[int, int]], features: torch.Tensor) -> None:
    """Rows of features to rows of ``memory``."""
    if pairs:
        place, row = torch.tensor(pairs, device=features.device).unbind(1)
        memory.index_copy_(0, place, features.index_select(0, row))


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
