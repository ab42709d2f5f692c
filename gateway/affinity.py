"""Which verifier read the beginning of a prompt last: a bounded memory of blocks of tokens."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence

BLOCK_TOKENS = 64
MAX_BLOCKS = 128  # of one prompt
MEMORY = 65_536  # blocks in all


def block_hashes(model_key: Hashable, token_ids: Sequence[int]) -> tuple[int, ...]:
    """One hash for each whole block of a prompt, which covers all blocks before it too. Equal in one process only."""
    hashes: list[int] = []
    so_far = hash(model_key)
    for start in range(0, min(len(token_ids) // BLOCK_TOKENS, MAX_BLOCKS) * BLOCK_TOKENS, BLOCK_TOKENS):
        so_far = hash((so_far, tuple(token_ids[start : start + BLOCK_TOKENS])))
        hashes.append(so_far)
    return tuple(hashes)


class PrefixMemory:
    """Block hash to address; what was not used for longest is forgotten first. A wrong entry costs time only."""

    def __init__(self, size: int = MEMORY) -> None:
        self._size = size
        self._address: OrderedDict[int, str] = OrderedDict()

    def __len__(self) -> int:
        return len(self._address)

    def remember(self, hashes: Sequence[int], address: str) -> None:
        """The verifier at ``address`` reads this prompt."""
        for block in hashes:
            self._address[block] = address
            self._address.move_to_end(block)
        while len(self._address) > self._size:
            self._address.popitem(last=False)

    def known_tokens(self, hashes: Sequence[int]) -> dict[str, int]:
        """By address, how many tokens of the prompt's beginning it read last."""
        return {
            address: (index + 1) * BLOCK_TOKENS
            for index, block in enumerate(hashes)
            if (address := self._address.get(block)) is not None
        }
