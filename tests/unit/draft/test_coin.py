"""Drafts that follow the target's noise: the same noise, and the candidates of the sum."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from dartspec.services.draft import propose
from dartspec.services.draft.coin import Coin, noise_rows
from dartspec.services.draft.coin import gumbel as gumbel_of
from dartspec.services.draft.head import DraftHead
from dartspec.services.draft.propose import Proposer
from dartspec.services.verifier.noise import gumbel

MakeHead = Callable[..., DraftHead]


def test_the_noise_is_the_one_that_the_target_samples_with() -> None:
    generator = torch.Generator().manual_seed(0)
    coins = [Coin(0, 1.0, 1), Coin(2**64 - 1, 0.5, 2**31), Coin(0x0123456789ABCDEF, 2.0, 777)]
    ids = torch.randint(150_000, (len(coins) * 3, 50), generator=generator)
    rows = noise_rows(coins, 3, ids).unflatten(0, (len(coins), 3))
    for coin, of_session, candidates in zip(coins, rows, ids.unflatten(0, (len(coins), 3)), strict=True):
        for offset in range(3):
            expected = coin.temperature * gumbel(candidates[offset].numpy(), coin.position + offset, coin.seed)
            np.testing.assert_allclose(of_session[offset].numpy(), expected, rtol=1e-12, atol=1e-12)


def naive_shared(logits: np.ndarray, target_ids: np.ndarray, coin: Coin, offset: int, among: int) -> np.ndarray:
    """Log-probabilities [V_draft] of the sum; logits that are not among the largest count without noise.

    Minus infinity for those, since they are no candidates.
    """
    order = np.argsort(-logits, kind="stable")
    total = logits.astype(np.float64)
    total[order[:among]] += coin.temperature * gumbel(target_ids[order[:among]], coin.position + offset, coin.seed)
    values = total - np.log(np.exp(total).sum())
    values[order[among:]] = -np.inf
    return values


@pytest.mark.parametrize("among", [61, 20])
def test_candidates_are_the_best_of_the_sum(make_head: MakeHead, monkeypatch: pytest.MonkeyPatch, among: int) -> None:
    monkeypatch.setattr(propose, "COIN_CANDIDATES", among)
    head = make_head(draft_vocab_size=61)
    head.d2t.copy_(torch.arange(61) // 2)  # target ids with gaps
    proposer = Proposer(head)
    target_ids = head.target_ids().numpy()
    depth = head.config.depth
    logits = 3.0 * torch.randn(3, depth, 61, generator=torch.Generator().manual_seed(1))
    coins = [Coin(5, 0.7, 30), None, Coin(5, 1.3, 31)]
    found = proposer.top(logits, 12, coins)
    plain = proposer.top(logits, 12, [None] * 3)
    for session, (coin, proposals) in enumerate(zip(coins, found, strict=True)):
        for offset in range(depth):
            if coin is None:
                np.testing.assert_array_equal(proposals.token_ids[offset], plain[session].token_ids[offset])
                np.testing.assert_array_equal(proposals.logprobs[offset], plain[session].logprobs[offset])
                continue
            expected = naive_shared(logits[session, offset].numpy(), target_ids, coin, offset, among)
            best = np.argsort(-expected, kind="stable")[:12]
            np.testing.assert_array_equal(proposals.token_ids[offset], target_ids[best])
            np.testing.assert_allclose(proposals.logprobs[offset], expected[best], rtol=1e-5, atol=1e-5)
            assert not np.array_equal(proposals.token_ids[offset], plain[session].token_ids[offset])


def test_the_target_itself_as_a_head_is_always_right(make_head: MakeHead) -> None:
    """With the target's own logits the first candidate is the token that the target samples, whatever the noise."""
    head = make_head()
    proposer = Proposer(head)
    logits = 2.0 * torch.randn(1, head.config.depth, 97, generator=torch.Generator().manual_seed(2))
    for seed in range(20):
        (proposals,) = proposer.top(logits, 1, [Coin(seed, 0.9, 12)])
        for offset in range(head.config.depth):
            scores = logits[0, offset].double().numpy() / 0.9 + gumbel(np.arange(97), 12 + offset, seed)
            assert proposals.token_ids[offset][0] == np.argmax(scores)


def test_tensors_of_a_device_get_the_same_noise() -> None:
    rng = np.random.default_rng(3)
    ids, seed, position = rng.integers(0, 2**20, (4, 30)), rng.integers(0, 2**32, (2, 4, 1)), np.full((4, 1), 2**33 + 9)
    on_host = gumbel_of(ids, seed[0], seed[1], position)
    tensors = (torch.from_numpy(value) for value in (ids, seed[0], seed[1], position))
    np.testing.assert_allclose(gumbel_of(*tensors).numpy(), on_host, rtol=1e-14)
