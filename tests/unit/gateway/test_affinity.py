"""The memory of prompt blocks."""

from __future__ import annotations

from dartspec.gateway.affinity import BLOCK_TOKENS, MAX_BLOCKS, PrefixMemory, block_hashes

TOKENS = list(range(5 * BLOCK_TOKENS))


def test_whole_blocks_only_and_each_covers_those_before() -> None:
    hashes = block_hashes("m", TOKENS)
    assert len(hashes) == len(set(hashes)) == 5
    assert block_hashes("m", TOKENS[:-1]) == hashes[:4]
    assert block_hashes("m", TOKENS[: BLOCK_TOKENS - 1]) == ()
    changed = [7, *TOKENS[1:]]
    assert not set(block_hashes("m", changed)) & set(hashes)
    assert not set(block_hashes("other", TOKENS)) & set(hashes)
    assert len(block_hashes("m", range(10**6))) == MAX_BLOCKS


def test_how_much_each_knows() -> None:
    memory = PrefixMemory()
    hashes = block_hashes("m", TOKENS)
    memory.remember(hashes, "a")
    memory.remember(hashes[:2], "b")
    assert memory.known_tokens(hashes) == {"a": 5 * BLOCK_TOKENS, "b": 2 * BLOCK_TOKENS}
    assert memory.known_tokens(block_hashes("m", TOKENS[: 3 * BLOCK_TOKENS])) == {
        "a": 3 * BLOCK_TOKENS,
        "b": 2 * BLOCK_TOKENS,
    }
    assert memory.known_tokens(block_hashes("m", TOKENS[::-1])) == {}


def test_it_forgets_what_was_not_used_for_longest() -> None:
    memory = PrefixMemory(size=6)
    old, new = block_hashes("m", TOKENS[: 3 * BLOCK_TOKENS]), block_hashes("n", TOKENS)
    memory.remember(old, "a")
    memory.remember(new[:3], "b")
    memory.remember(old, "a")
    memory.remember(new[3:], "b")
    assert len(memory) == 6
    assert memory.known_tokens(old) == {"a": 3 * BLOCK_TOKENS}
    assert memory.known_tokens(new[:2]) == {}  # used longest ago
    assert memory.known_tokens(new) == {"b": 5 * BLOCK_TOKENS}
