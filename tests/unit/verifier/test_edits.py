"""Edits that are kept from token to token are those that a fresh history gives, and those of the naive twin."""

from __future__ import annotations

import random

import numpy as np
import pytest

from dartspec.services.common.types import Sampling
from dartspec.services.verifier.edits import FIELDS, TOKEN, Edits, History

from .naive_sampling import naive_processed

VOCAB = 400
ENDERS = frozenset({3, 7})
SAMPLINGS = {
    "nothing": Sampling(0.0, 9),
    "bias": Sampling(0.0, 9, logit_bias={5: 2.5, 3: -1.0}),
    "banned": Sampling(0.0, 9, banned_token_ids=(9, 9, 5), logit_bias={5: 2.5}),
    "allowed": Sampling(0.0, 9, allowed_token_ids=tuple(range(50)), frequency_penalty=0.5),
    "min_tokens": Sampling(0.0, 9, min_tokens=20),
    "repetition": Sampling(0.0, 9, repetition_penalty=1.3),
    "presence": Sampling(0.0, 9, presence_penalty=0.7),
    "frequency": Sampling(0.0, 9, frequency_penalty=-0.2, min_tokens=20),
    "all": Sampling(
        0.0,
        9,
        repetition_penalty=0.8,
        presence_penalty=0.7,
        frequency_penalty=0.2,
        logit_bias={5: 2.5, 3: -1.0},
        banned_token_ids=(11,),
        min_tokens=20,
    ),
}


def rows_of(edits: Edits) -> dict[int, tuple[float, ...]]:
    """What becomes of each token that is edited."""
    assert edits.table.shape[1] == FIELDS
    assert edits.address == edits.table.ctypes.data
    return {int(row[TOKEN]): tuple(row.tolist()) for row in edits.table[: edits.edited]}


@pytest.mark.parametrize("name", SAMPLINGS)
def test_edits_are_kept_up_with_the_answer(name: str) -> None:
    rng, sampling = random.Random(name), SAMPLINGS[name]
    logits = np.random.default_rng(3).standard_normal(VOCAB).astype(np.float32)
    prompt, answer = rng.choices(range(VOCAB), k=15), rng.choices(range(VOCAB), k=4)
    history = History.of(prompt, answer)
    # More new tokens than a table has room for at first.
    for token in rng.choices(range(VOCAB), k=300):
        edits = history.edits(sampling, ENDERS)
        fresh = History.of(prompt, answer).edits(sampling, ENDERS)
        assert rows_of(edits) == rows_of(fresh)
        assert edits.any == fresh.any
        if len(answer) % 17 == 0:
            expected = naive_processed(logits.tolist(), prompt, answer, sampling, ENDERS)
            got = edits.of(logits)
            assert np.flatnonzero(got > -np.inf).tolist() == sorted(expected)
            np.testing.assert_allclose(got[sorted(expected)], [expected[token] for token in sorted(expected)])
        history.append(token)
        answer.append(token)


def test_edits_are_the_same_object_until_others_are_asked_for() -> None:
    history, sampling = History.of([1, 2]), SAMPLINGS["repetition"]
    edits = history.edits(sampling, ENDERS)
    history.append(5)
    assert history.edits(sampling, ENDERS) is edits
    assert not history.edits(SAMPLINGS["nothing"], ENDERS).any
    assert history.edits(SAMPLINGS["min_tokens"], frozenset({8})).edited == 1
    assert history.edits(SAMPLINGS["min_tokens"], ENDERS).edited == len(ENDERS)


def test_a_token_that_is_removed_may_have_any_logit() -> None:
    logits = np.array([np.inf, 1.0, 2.0], np.float32)
    got = History().edits(Sampling(1.0, 9, banned_token_ids=(0,)), ENDERS).of(logits)
    assert got.tolist() == [-np.inf, 1.0, 2.0]
