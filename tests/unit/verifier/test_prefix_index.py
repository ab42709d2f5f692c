"""The index of held prefixes against a plain dictionary of whole prefixes."""

from __future__ import annotations

import random

import pytest

from dartspec.services.verifier import prefix_index
from dartspec.services.verifier.prefix_index import Block, PrefixIndex


def blocks_of(text: str) -> list[bytes]:
    return [letter.encode() for letter in text]


def walk(index: PrefixIndex[int], text: str) -> list[Block[int]]:
    """The longest chain of blocks of ``text`` that is held."""
    chain = [index.root]
    for tokens in blocks_of(text):
        found = index.find(chain[-1], tokens)
        if found is None:
            break
        chain.append(found)
    return chain[1:]


def hold(index: PrefixIndex[int], text: str, place: int) -> None:
    block = index.root
    for tokens in blocks_of(text):
        block = index.get(block, tokens)
        block.places.append(place)


def let_go(index: PrefixIndex[int], text: str, place: int) -> None:
    chain = walk(index, text)
    for block in chain:
        block.places.remove(place)
    for block in random.Random(place).sample(chain, len(chain)):  # in any order, and also after it is gone
        index.prune(block)


@pytest.mark.parametrize("collide", [False, True])
def test_it_finds_what_a_dictionary_of_prefixes_finds(monkeypatch: pytest.MonkeyPatch, collide: bool) -> None:
    if collide:
        monkeypatch.setattr(prefix_index, "chain_hash", lambda previous, tokens: b"always the same")
    rng = random.Random(4)
    index: PrefixIndex[int] = PrefixIndex()
    held: dict[int, str] = {}
    for number in range(400):
        if held and rng.random() < 0.45:
            place = rng.choice(sorted(held))
            let_go(index, held.pop(place), place)
        else:
            held[number] = "".join(rng.choice("ab") for _ in range(rng.randint(0, 6)))
            hold(index, held[number], number)
        prefixes: dict[str, set[int]] = {}
        for place, text in held.items():
            for end in range(1, len(text) + 1):
                prefixes.setdefault(text[:end], set()).add(place)
        assert len(index) == len(prefixes)
        probe = "".join(rng.choice("abc") for _ in range(6))
        chain = walk(index, probe)
        assert len(chain) == max((end for end in range(7) if end == 0 or probe[:end] in prefixes), default=0)
        for depth, block in enumerate(chain, start=1):
            assert set(block.places) == prefixes[probe[:depth]]
            assert block.depth == depth


def test_a_block_of_equal_tokens_behind_others_is_another_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefix_index, "chain_hash", lambda previous, tokens: b"always the same")
    index: PrefixIndex[int] = PrefixIndex()
    hold(index, "ab", 1)
    hold(index, "bb", 2)
    assert [block.places for block in walk(index, "ab")] == [[1], [1]]
    assert [block.places for block in walk(index, "bb")] == [[2], [2]]
    assert walk(index, "cb") == []


def test_the_hash_depends_on_every_block_and_on_their_order() -> None:
    def of(text: str) -> bytes:
        digest = b""
        for tokens in blocks_of(text):
            digest = prefix_index.chain_hash(digest, tokens)
        return digest

    digests = {of(text) for text in ("a", "b", "ab", "ba", "aab", "aba", "baa", "abb")}
    assert len(digests) == 8
