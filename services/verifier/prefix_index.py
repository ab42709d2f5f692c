"""Which token prefixes are held anywhere, in whole blocks. Pure: it knows nothing of memory.

A block is found by the hash of the chain of blocks up to it and taken only if its tokens, and its predecessor, are the
same: a hash alone never decides.
"""

from __future__ import annotations

import hashlib
from typing import Generic, TypeVar

Place = TypeVar("Place")


def chain_hash(previous: bytes, tokens: bytes) -> bytes:
    """Hash of a chain of blocks from that of all but the last of them."""
    return hashlib.blake2b(previous + tokens, digest_size=16).digest()


class Block(Generic[Place]):
    """A block of tokens after exactly those of its predecessors, and the places where its rows are."""

    __slots__ = ("children", "depth", "digest", "parent", "places", "tokens")

    def __init__(self, parent: Block[Place] | None, tokens: bytes, digest: bytes) -> None:
        self.parent = parent  # None: the root, which has no tokens
        self.tokens = tokens
        self.digest = digest
        self.depth: int = 0 if parent is None else parent.depth + 1  # blocks up to it
        self.places: list[Place] = []
        self.children = 0


class PrefixIndex(Generic[Place]):
    """The blocks that have places, and their predecessors."""

    def __init__(self) -> None:
        self.root: Block[Place] = Block(None, b"", b"")
        self._blocks: dict[bytes, list[Block[Place]]] = {}

    def __len__(self) -> int:
        return sum(len(blocks) for blocks in self._blocks.values())

    def find(self, parent: Block[Place], tokens: bytes) -> Block[Place] | None:
        """The block with these tokens after ``parent``."""
        same_hash = self._blocks.get(chain_hash(parent.digest, tokens), ())
        return next((block for block in same_hash if block.parent is parent and block.tokens == tokens), None)

    def get(self, parent: Block[Place], tokens: bytes) -> Block[Place]:
        """The same; a new one if there is none. It must be given a place, or be pruned."""
        found = self.find(parent, tokens)
        if found is None:
            found = Block(parent, tokens, chain_hash(parent.digest, tokens))
            parent.children += 1
            self._blocks.setdefault(found.digest, []).append(found)
        return found

    def prune(self, block: Block[Place]) -> None:
        """Forget a block, and its predecessors, if nothing holds them or follows them any more."""
        while (parent := block.parent) is not None and not block.places and not block.children:
            same_hash = self._blocks[block.digest]
            same_hash.remove(block)
            if not same_hash:
                del self._blocks[block.digest]
            block.parent = None  # pruning it again does nothing
            parent.children -= 1
            block = parent
