"""Prefix reuse: a session takes over the rows of a prefix that another one has computed, open or over.

Open sessions are read where they are. What a session that ends leaves behind, and nobody else holds, is copied out of
its slot, block by block, into units of memory that no slot needs; so open sessions stay close together, and the kept
blocks give way to slots and to one another, least recently used first.

Only committed rows take part: blocks of which the session has committed every token. A block serves a session that may
draft only where the draft head's rows are there too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from dartspec.services.draft.head import DraftHead
from dartspec.services.verifier.features import PREFIX_BLOCK
from dartspec.services.verifier.kv_cache import SLOT_BLOCK, KeptUnit, KVPool, Region
from dartspec.services.verifier.prefix_index import Block, PrefixIndex
from dartspec.services.verifier.session import Session


@dataclass(frozen=True, eq=False)
class Place:
    """Where the rows of a block are: in a unit of their own, or in the slot of a session."""

    region: Region
    start: int
    unit: KeptUnit | None
    session: Session | None
    drafted: bool = False  # in a unit: the draft head's rows are there

    def drafts(self, depth: int) -> bool:
        """Whether the draft head's rows of the block, which ends the first ``depth`` blocks, are there."""
        if self.session is None:
            return self.drafted
        head = self.session.head_cache
        return head is not None and head.length >= depth * PREFIX_BLOCK - 1


PlacedBlock = Block[Place]


@dataclass(eq=False)
class _Source:
    """An open session and its committed blocks."""

    session: Session
    blocks: list[PlacedBlock] = field(default_factory=list)


@dataclass(eq=False)
class _Unit:
    """A unit's blocks."""

    memory: KeptUnit
    blocks: list[PlacedBlock] = field(default_factory=list)

    @property
    def full(self) -> bool:
        return len(self.blocks) * PREFIX_BLOCK == SLOT_BLOCK


class PrefixStore:
    """The prefixes of one target and head, and the counters ``reused_tokens`` and ``evicted_blocks``."""

    def __init__(self, pool: KVPool, head: DraftHead | None) -> None:
        self.pool = pool
        self.head = head
        self.reused_tokens = 0
        self.evicted_blocks = 0
        self._index: PrefixIndex[Place] = PrefixIndex()
        self._open: dict[int, _Source] = {}
        self._units: dict[KeptUnit, _Unit] = {}
        self._filling: _Unit | None = None

    @property
    def kept_tokens(self) -> int:
        """Tokens of prefixes that no open session holds."""
        return PREFIX_BLOCK * sum(len(unit.blocks) for unit in self._units.values())

    def refresh(self) -> None:
        """Learn what the open sessions have committed since the last time."""
        for source in self._open.values():
            self._register(source)

    def opened(self, session: Session) -> None:
        """A session is open from now on."""
        self._open[id(session)] = _Source(session)

    def reserve(self, token_ids: Sequence[int], drafts: bool) -> None:
        """Mark what such a prompt can reuse as used now, so that making room for the session goes for other blocks."""
        self._touch([place for _, place in self._longest(token_ids, [], drafts, None)])

    def reuse(self, session: Session) -> int:
        """Take over what is held of a session's prompt and not yet read; at least its last token is left to read.

        The number of tokens. The session must be open here, and `refresh` have been called since the last pass.
        """
        if not session.prefilling:
            return 0
        own = self._open[id(session)].blocks
        before, held = session.n, len(own) * PREFIX_BLOCK
        if session.head_cache is not None and session.head_cache.length < held - 1:
            return 0  # the head's own rows would have a gap
        found = self._longest(session.opened.token_ids, own, session.head_cache is not None, session)
        if not found:
            return 0
        self._touch([place for _, place in found])
        first = session.cache.start + held
        targets = [
            Place(session.cache.region, first + number * PREFIX_BLOCK, None, session) for number in range(len(found))
        ]
        copies = [(place, target) for (_, place), target in zip(found, targets, strict=True)]
        _copy(copies, drafts=session.head_cache is not None)
        held += len(found) * PREFIX_BLOCK
        session.cache.length = held
        if session.features is not None:
            session.features.take_over(held)
        self.reused_tokens += held - before
        return held - before

    def closed(self, session: Session) -> None:
        """A session ends: keep what only it holds, while there is memory that nobody else needs."""
        source = self._open[id(session)]
        self._register(source)
        if session.sound:
            self._keep(source)
        del self._open[id(session)]
        for block in source.blocks:
            block.places = [place for place in block.places if place.session is not session]
        for block in reversed(source.blocks):
            self._index.prune(block)

    def clear(self) -> None:
        """Forget all that is kept."""
        for unit in list(self._units.values()):
            self._evict(unit.memory)
        self.evicted_blocks = 0

    def _register(self, source: _Source) -> None:
        session, blocks = source.session, source.blocks
        while (len(blocks) + 1) * PREFIX_BLOCK <= session.n:
            parent = blocks[-1] if blocks else self._index.root
            first = len(blocks) * PREFIX_BLOCK
            block = self._index.get(parent, _block_tokens(session.tokens, len(blocks)))
            block.places.append(Place(session.cache.region, session.cache.start + first, None, session))
            blocks.append(block)

    def _longest(
        self, token_ids: Sequence[int], own: Sequence[PlacedBlock], drafts: bool, but: Session | None
    ) -> list[tuple[PlacedBlock, Place]]:
        """The blocks that follow ``own`` in a prompt, with a place that is not ``but``'s, as far as they are held."""
        found: list[tuple[PlacedBlock, Place]] = []
        parent = own[-1] if own else self._index.root
        for number in range(len(own), (len(token_ids) - 1) // PREFIX_BLOCK):
            block = self._index.find(parent, _block_tokens(token_ids, number))
            if block is None:
                break
            usable = (
                place
                for place in block.places
                if (place.session is None or place.session is not but) and (not drafts or place.drafts(block.depth))
            )
            place = next(usable, None)
            if place is None:
                break
            found.append((block, place))
            parent = block
        return found

    def _touch(self, places: Sequence[Place]) -> None:
        # The end of a prefix is of no use without its beginning, so the beginning counts as used later.
        for place in reversed(places):
            if place.unit is not None:
                place.unit.touch(self.pool.tick())

    def _keep(self, source: _Source) -> None:
        """Copy the blocks that nobody else holds out of the slot. What they rest on counts as used now."""
        session = source.session
        began = self.pool.tick()
        held: list[Place] = []
        copies: list[tuple[Place, Place]] = []
        for block in source.blocks:
            own = next(place for place in block.places if place.session is session)
            drafted = own.drafts(block.depth)
            others = (place for place in block.places if place.session is not session)
            place = next((place for place in others if not drafted or place.drafts(block.depth)), None)
            if place is None:
                unit = self._unit_with_space(began)
                if unit is None:
                    break
                start = unit.memory.start + len(unit.blocks) * PREFIX_BLOCK
                place = Place(unit.memory.region, start, unit.memory, None, drafted)
                unit.blocks.append(block)
                block.places.append(place)
                copies.append((own, place))
            held.append(place)
            self._touch(held[-1:])  # so that the next block does not push it out
        _copy([pair for pair in copies if pair[1].drafted], drafts=True)
        _copy([pair for pair in copies if not pair[1].drafted], drafts=False)
        self._touch(held)

    def _unit_with_space(self, began: int) -> _Unit | None:
        """A unit with space for a block; at need that of blocks that were last used before ``began``."""
        if self._filling is not None and not self._filling.full:
            return self._filling
        memory = self.pool.new_unit(self._evict)
        if memory is None:
            oldest = min(self._units, key=lambda unit: unit.used, default=None)
            if oldest is None or oldest.used > began:
                return None
            self._evict(oldest)
            memory = self.pool.new_unit(self._evict)
            assert memory is not None
        self._filling = self._units[memory] = _Unit(memory)
        return self._filling

    def _evict(self, memory: KeptUnit) -> None:
        unit = self._units.pop(memory)
        if unit is self._filling:
            self._filling = None
        for block in unit.blocks:
            block.places = [place for place in block.places if place.unit is not memory]
        for block in reversed(unit.blocks):
            self._index.prune(block)
        self.evicted_blocks += len(unit.blocks)
        memory.release()


def _block_tokens(token_ids: Sequence[int], number: int) -> bytes:
    return np.array(token_ids[number * PREFIX_BLOCK : (number + 1) * PREFIX_BLOCK], dtype=np.int32).tobytes()


def _copy(pairs: Sequence[tuple[Place, Place]], drafts: bool) -> None:
    """Copy blocks from place to place; those that lie one behind the other, here and there, go at once."""
    runs: list[tuple[Place, Place, int]] = []
    for source, target in pairs:
        if runs:
            first, to, blocks = runs[-1]
            if _follows(source, first, blocks) and _follows(target, to, blocks):
                runs[-1] = first, to, blocks + 1
                continue
        runs.append((source, target, 1))
    for first, to, blocks in runs:
        to.region.copy_from(first.region, first.start, to.start, blocks * PREFIX_BLOCK, drafts)


def _follows(place: Place, first: Place, blocks: int) -> bool:
    return place.region is first.region and place.start == first.start + blocks * PREFIX_BLOCK
