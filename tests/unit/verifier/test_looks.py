"""Rows looked at together: each is drawn from as the mathematics says, and as it is alone, to the last bit."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import numpy as np
import pytest
import torch

from dartspec.services.common.types import Sampling
from dartspec.services.verifier import looks
from dartspec.services.verifier.draw import MARGIN_LIMIT
from dartspec.services.verifier.edits import History
from dartspec.services.verifier.looks import Toss, look
from dartspec.services.verifier.noise import gumbel
from dartspec.services.verifier.rows import Drawn, Row, stored
from dartspec.services.verifier.sampling import FEW_TOKENS, choose_with_margin, toss_of

from .naive_sampling import naive_processed

NONE: frozenset[int] = frozenset()
SCALES = (0.1, 1.0, 3.0, 5.0, 10.0, 30.0)


def looks_at(logits: torch.Tensor, tosses: Sequence[Toss | None], chosen: Sequence[int] | None = None) -> list[Row]:
    """At the chosen rows, all of them if nothing is said."""
    return look(stored(logits), range(len(logits)) if chosen is None else chosen, tosses)


def draws(logits: torch.Tensor, tosses: Sequence[Toss | None]) -> list[Drawn | None]:
    """From all rows, or from the only one as often as there are tosses."""
    chosen = [0] * len(tosses) if len(logits) == 1 else None
    return [found.drawn for found in looks_at(logits, tosses, chosen)]


def random_sampling(rng: random.Random, vocab: int) -> Sampling:
    """Parameters of all kinds; each of them is off in about half of the cases."""
    token = range(vocab)
    return Sampling(
        temperature=rng.choice([0.3, 0.8, 1.0, 2.0]),
        max_tokens=9,
        top_k=rng.choice([0, 0, 1, 5, 50, 2000]),
        top_p=rng.choice([1.0, 1.0, 0.95, 0.5, 0.01]),
        min_p=rng.choice([0.0, 0.0, 0.05, 0.7]),
        repetition_penalty=rng.choice([1.0, 1.0, 1.3]),
        presence_penalty=rng.choice([0.0, 0.0, 0.7]),
        frequency_penalty=rng.choice([0.0, 0.0, -0.4]),
        logit_bias=rng.choice([{}, {}, {rng.choice(token): 30.0, 0: -5.0}]),
        banned_token_ids=rng.choice([(), (), (rng.choice(token), 1, 1)]),
        min_tokens=rng.choice([0, 0, 100]),
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("vocab", [130, 999, 20_003])
def test_rows_are_drawn_as_the_naive_twin_says_and_as_they_are_alone(vocab: int, dtype: torch.dtype) -> None:
    generator, rng = torch.Generator().manual_seed(vocab), random.Random(vocab)
    logits = (torch.tensor(SCALES)[:, None] * torch.randn(len(SCALES), vocab, generator=generator)).to(dtype)
    numbers = range(len(SCALES))
    drawn_together = 0
    for case in range(4 if vocab > 10_000 else 40):
        samplings = [random_sampling(rng, vocab) for _ in numbers]
        prompts = [rng.choices(range(vocab), k=20) for _ in numbers]
        answers = [rng.choices(range(vocab), k=12) for _ in numbers]
        enders = frozenset(rng.sample(range(vocab), 2))
        tosses = []
        for number in numbers:
            history = History.of(prompts[number], answers[number])
            toss = toss_of(vocab, 50 + case, history, samplings[number], number, enders)
            assert toss is not None
            tosses.append(toss)
        # Some rows are looked at without a coin.
        quiet = rng.randrange(len(SCALES))
        together = looks_at(logits, [None if number == quiet else tosses[number] for number in numbers])
        assert together[quiet].drawn is None
        for number in numbers:
            (alone,) = looks_at(logits, [tosses[number]], [number])
            history = History.of(prompts[number], answers[number])
            by_numpy = choose_with_margin(alone, 50 + case, history, samplings[number], number, enders)
            values = logits[number].float().tolist()
            expected = naive_processed(values, prompts[number], answers[number], samplings[number], enders)
            ids = np.array(sorted(expected))
            totals = np.array([expected[token] for token in ids.tolist()]) + gumbel(ids, 50 + case, number)
            gap = math.inf if len(totals) == 1 else float(np.diff(np.sort(totals)[-2:])[0])
            for got in (by_numpy, alone.drawn):
                if got is not None:
                    assert got[0] == ids[totals.argmax()], samplings[number]
                    if min(got[1], gap) < MARGIN_LIMIT:
                        assert got[1] == pytest.approx(gap, abs=1e-9)
            assert together[number].summary == alone.summary
            if number != quiet:
                assert together[number].drawn == alone.drawn
            if alone.drawn is not None:
                drawn_together += 1
                assert alone.drawn.logit == values[alone.drawn.token]
    assert drawn_together > 15


def test_a_token_that_is_banned_twice_is_never_drawn() -> None:
    logits = torch.randn(1, 500, generator=torch.Generator().manual_seed(3))
    logits[0, 7] = 40.0
    sampling = Sampling(1.0, 9, banned_token_ids=(7, 7))
    found = draws(logits, [toss_of(500, position, History(), sampling, 1, NONE) for position in range(50)])
    assert all(got is not None and got[0] != 7 for got in found)


def test_what_compiled_code_cannot_draw_from_is_left_to_others() -> None:
    vocab, plain = 20_000, Sampling(1.0, 9)
    logits = torch.randn(6, vocab, generator=torch.Generator().manual_seed(3))
    logits[0, 7] = math.nan
    logits[1] = -math.inf
    logits[2] = 0.0  # far more tokens near the top than there is room for
    cold, nearly_all = Sampling(1e-9, 9), Sampling(1.0, 9, top_p=0.9999)
    samplings = [plain, plain, plain, cold, nearly_all, Sampling(1.0, 9, top_k=3)]
    tosses = [Toss(sampling, 5, 1, History().edits(sampling, NONE)) for sampling in samplings]
    assert [got is None for got in draws(logits, tosses)] == [True] * 5 + [False]
    # Nor from a row whose tokens have all been banned.
    banned = toss_of(vocab, 5, History(), Sampling(1.0, 9, banned_token_ids=tuple(range(vocab))), 1, NONE)
    assert banned is not None
    assert draws(logits[5:], [banned]) == [None]
    assert toss_of(vocab, 5, History(), Sampling(1.0, 9, allowed_token_ids=(3,)), 1, NONE) is None
    assert toss_of(vocab, 5, History(), Sampling(0.0, 9), 1, NONE) is None
    assert toss_of(FEW_TOKENS - 1, 5, History(), plain, 1, NONE) is None


def test_a_sum_that_is_all_but_what_top_p_asks_for_is_left_to_numpy() -> None:
    # Eight tokens of one logit, so the sum of four is half of all, to the last bit.
    logits = torch.full((1, 500), -math.inf)
    logits[0, 20:28] = 2.0
    row = looks_at(logits, [None])[0]
    for sampling in (Sampling(1.0, 9, top_p=0.5), Sampling(0.7, 9, top_p=0.5, top_k=8)):
        tosses = [Toss(sampling, position, 1, History().edits(sampling, NONE)) for position in range(60)]
        assert draws(logits, tosses) == [None] * 60
        got = {choose_with_margin(row, position, History(), sampling, 1, NONE)[0] for position in range(60)}
        assert got == {20, 21, 22, 23}
    sampling = Sampling(1.0, 9, top_p=0.51)
    tosses = [Toss(sampling, position, 1, History().edits(sampling, NONE)) for position in range(60)]
    assert {drawn.token for drawn in draws(logits, tosses) if drawn is not None} == {20, 21, 22, 23, 24}


def test_totals_that_are_equal_are_left_to_numpy() -> None:
    logits = torch.zeros(1, 500)
    logits[0, [7, 30, 90]] = 1e30  # no noise changes that
    row = looks_at(logits, [None])[0]
    for sampling in (Sampling(1.0, 9), Sampling(1.0, 9, top_k=5)):
        assert draws(logits, [Toss(sampling, 5, 1, History().edits(sampling, NONE))]) == [None]
        assert choose_with_margin(row, 5, History(), sampling, 1, NONE) == (7, 0.0)
    alone = Sampling(1.0, 9, top_k=1)
    (drawn,) = draws(logits, [Toss(alone, 5, 1, History().edits(alone, NONE))])
    assert drawn is not None
    assert drawn[:2] == (7, math.inf)


def test_without_compiled_code_nothing_is_drawn_together(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = torch.randn(1, 500, generator=torch.Generator().manual_seed(3))
    sampling = Sampling(1.0, 9)
    toss = Toss(sampling, 5, 1, History().edits(sampling, NONE))
    (compiled,) = draws(logits, [toss])
    assert compiled is not None, "numba is part of the verifier's packages"
    monkeypatch.setattr(looks, "_loop", lambda short: None)
    (found,) = looks_at(logits, [toss])
    assert found.drawn is None
    assert choose_with_margin(found, 5, History(), sampling, 1, NONE)[0] == compiled.token


def test_no_rows_are_looked_at() -> None:
    assert looks_at(torch.zeros(0, 500), []) == []
