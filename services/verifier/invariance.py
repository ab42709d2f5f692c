"""Whether rows can be made independent of their company on this machine, and at what price.

Looked for at start, on the model's own weights: the smallest block of rows (see `linear.py`) for which every product of
up to 64 rows gives bitwise the same rows, and for which whole passes do too: a row alone, among others, at the root of
a tree and in the middle of a chain.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from dartspec.services.verifier.attention import Segment, causal_rows
from dartspec.services.verifier.kv_cache import KVCache
from dartspec.services.verifier.linear import TILE_ROWS, Matrix
from dartspec.services.verifier.target import Target

ROW_BLOCKS = (1, 4, 8, 16, 32)
# A plain step may cost this much more before the mode is off by default.
ACCEPTED_COST = 1.03
REPEATS = 7
# Committed tokens of the two sessions whose rows are compared in whole passes; they need so many positions each.
PREFIXES = (5, 97)
POSITIONS = 128
# Rows of a chain that one-token passes are compared with.
CHAIN_ROWS = 4


def smallest_row_block(target: Target) -> int:
    """The smallest block of rows that holds for every shape of weight and in whole passes; `TILE_ROWS` if none does."""
    layer = target.layers[0]
    weights = [layer.qkv, layer.out, layer.gate_up, layer.down, target.lm_head]
    before = target.row_block
    try:
        for block in ROW_BLOCKS:
            target.row_block = block
            if all(_holds(weight, block) for weight in weights) and passes_agree(target):
                return block
        return TILE_ROWS
    finally:
        target.row_block = before


@torch.inference_mode()
def passes_agree(target: Target) -> bool:
    """Whether logits and features of rows are bitwise the same alone, among other sessions and in trees.

    Takes room for `PREFIXES` sessions in the pool for as long as it lasts.
    """
    generator = np.random.default_rng(0)
    vocabulary = target.config.vocab_size
    sessions = []
    for length in PREFIXES:
        cache = target.new_cache(POSITIONS)
        prompt = generator.integers(vocabulary, size=length).tolist()
        target.eager([_chain(cache, prompt)])
        cache.commit(range(length))
        sessions.append(cache)
    try:
        chains = [_chain(cache, generator.integers(vocabulary, size=CHAIN_ROWS).tolist()) for cache in sessions]
        rows = [_outputs(target, [chain]) for chain in chains]
        together = _outputs(target, [_first(chain) for chain in chains])
        mixed = _outputs(target, [_first(chains[0]), chains[1]])
        agree = torch.equal(together, torch.cat([rows[0][:1], rows[1][:1]]))
        agree = agree and torch.equal(mixed, torch.cat([rows[0][:1], rows[1]]))
        return agree and all(_one_by_one(target, chain, each) for chain, each in zip(chains, rows, strict=True))
    finally:
        for cache in sessions:
            cache.release()


def _one_by_one(target: Target, chain: Segment, rows: torch.Tensor) -> bool:
    """Whether a chain's tokens give its rows when plain decoding, alone, comes to them. Commits them."""
    for number, token in enumerate(chain.token_ids):
        if not torch.equal(_outputs(target, [_chain(chain.cache, [token])]), rows[number : number + 1]):
            return False
        chain.cache.commit([0])
    return True


def _chain(cache: KVCache, tokens: Sequence[int]) -> Segment:
    rows = len(tokens)
    return Segment(cache, list(tokens), np.arange(rows, dtype=np.int32), causal_rows(rows))


def _first(chain: Segment) -> Segment:
    return _chain(chain.cache, chain.token_ids[:1])


def _outputs(target: Target, segments: Sequence[Segment]) -> torch.Tensor:
    """All that a pass gives, [rows, features + V]."""
    out = target.eager(segments)
    return torch.cat((out.features, target.logits(out.hidden)), -1)


def settle(target: Target, choice: str, step_ms: Callable[[], float]) -> None:
    """Set ``target.row_block`` for "on", "off" or "auto", which is on where a plain step costs under 3% more.

    ``step_ms`` makes one plain pass and says how long it took; the two ways take turns, and the least counts.
    """
    target.row_block = 0
    if choice == "off":
        return
    block = smallest_row_block(target)
    if choice == "auto":
        best = {0: float("inf"), block: float("inf")}
        for _ in range(REPEATS):
            for each in best:
                target.row_block = each
                best[each] = min(best[each], step_ms())
        if best[block] > ACCEPTED_COST * best[0]:
            block = 0
    target.row_block = block


@torch.inference_mode()
def _holds(weight: Matrix, block: int) -> bool:
    """Whether products of ``block``, 2 ``block``, ... rows give the rows that a product of `TILE_ROWS` gives."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(TILE_ROWS, weight.in_features, generator=generator).to(weight.device, weight.dtype)
    full = weight(x)
    return all(torch.equal(weight(x[:rows]), full[:rows]) for rows in range(block, TILE_ROWS, block))
