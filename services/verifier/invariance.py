"""Whether rows can be made independent of their company on this machine, and at what price.

Looked for at start, on the model's own weights: the smallest block of rows and the largest tile (see `linear.py`) for
which every product gives bitwise the same rows, and for which whole passes do too: a row alone, among others, at the
root of a tree and in the middle of a chain. Kernels for few rows and for many are often different ones, and the place
where they change (after 32 rows with bfloat16 on AMX, torch 2.15) is between two tiles.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from dartspec.services.verifier.attention import Segment, causal_rows
from dartspec.services.verifier.kv_cache import KVCache
from dartspec.services.verifier.linear import ONE_SHAPE, Matrix, Rows
from dartspec.services.verifier.target import Target

# Best first: padding costs every pass, small tiles those of many rows.
CANDIDATES = (
    *(Rows(block, tile) for block in (1, 4, 8) for tile in (64, 32)),
    *(Rows(block, 64) for block in (16, 32)),
)
# A pass may cost this much more before the mode is off by default. Rows of those that are compared: a plain step of one
# session, and what a busy verifier or a long prompt makes of it.
ACCEPTED_COST = 1.03
COMPARED_ROWS = (1, 128)
REPEATS = 7
# Committed tokens of the two sessions whose rows are compared in whole passes; they need so many positions each.
PREFIXES = (5, 97)
POSITIONS = 128
# Rows of a chain that one-token passes are compared with.
CHAIN_ROWS = 4


def invariant_rows(target: Target) -> Rows:
    """The best of `CANDIDATES` that holds for every shape of weight and in whole passes; `ONE_SHAPE` if none does."""
    layer = target.layers[0]
    weights = [layer.qkv, layer.out, layer.gate_up, layer.down, target.lm_head]
    before = target.rows
    try:
        for rows in CANDIDATES:
            target.rows = rows
            if all(_holds(weight, rows) for weight in weights) and passes_agree(target):
                return rows
        return ONE_SHAPE
    finally:
        target.rows = before


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
        target.forward([_chain(cache, prompt)])
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
    out = target.forward(segments)
    return torch.cat((out.features, target.logits(out.hidden)), -1)


def settle(target: Target, choice: str, pass_ms: Callable[[int], float]) -> None:
    """Set ``target.rows`` for "on", "off" or "auto", which is on where small and large passes cost under 3% more.

    ``pass_ms(n)`` makes one pass of n rows and says how long it took; the two ways take turns, and the least counts.
    """
    target.rows = None
    if choice == "off":
        return
    found = invariant_rows(target)
    if choice == "on" or _costs_little(target, found, pass_ms):
        target.rows = found
    else:
        target.rows = None


def _costs_little(target: Target, rows: Rows, pass_ms: Callable[[int], float]) -> bool:
    for size in COMPARED_ROWS:
        best = {None: float("inf"), rows: float("inf")}
        for _ in range(REPEATS):
            for each in best:
                target.rows = each
                best[each] = min(best[each], pass_ms(size))
        if best[rows] > ACCEPTED_COST * best[None]:
            return False
    return True


@torch.inference_mode()
def _holds(weight: Matrix, rows: Rows) -> bool:
    """Whether every product that ``rows`` allows gives the same rows, wherever in it they stand."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(rows.tile, weight.in_features, generator=generator).to(weight.device, weight.dtype)
    full = weight(x)
    moved = torch.equal(weight(x.roll(1, 0)), full.roll(1, 0))
    return moved and all(
        torch.equal(weight(x[:size]), full[:size]) and torch.equal(weight(x[-size:]), full[-size:])
        for size in range(rows.block, rows.tile, rows.block)
    )
