"""Proposals with transition scores: on the wire, cut, and what they make of log-probabilities and of the chain."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dartspec.services.common.convert import proposals_from_proto, proposals_to_proto
from dartspec.services.common.errors import InvalidArgument
from dartspec.services.common.types import Proposals
from dartspec.services.verifier.decoder import best_chain


def bits(values: list[float]) -> np.ndarray:
    """The upper halves of float32 numbers; exact for numbers of few binary digits."""
    return (np.array(values, np.float32).view(np.uint32) >> 16).astype(np.uint16)


# After 5: 7 by half as likely and 9 four times as likely; after 6: twice, a quarter.
PROPOSALS = Proposals(
    (np.array([5, 6], np.int32), np.array([7, 9], np.int32), np.array([3], np.int32)),
    (
        np.log(np.array([0.6, 0.2], np.float32)),
        np.log(np.array([0.4, 0.3], np.float32)),
        np.log(np.array([0.5], np.float32)),
    ),
    bits([-0.6875, 1.375, 0.6875, -1.375, 0.0, 2.0]),
)


def test_what_was_packed_is_unpacked() -> None:
    message = proposals_to_proto(PROPOSALS)
    assert len(message.transitions) == 2 * (2 * 2 + 2 * 1)
    assert message.transitions[:2] == b"\x30\xbf"  # -0.6875 is 0xBF300000
    found = proposals_from_proto(message)
    assert found.transitions.tolist() == PROPOSALS.transitions.tolist()
    assert found.transition_scores.tolist() == [-0.6875, 1.375, 0.6875, -1.375, 0.0, 2.0]
    message.transitions = message.transitions[:-2]
    with pytest.raises(InvalidArgument, match=r"proposals.transitions: expected 12 bytes for 6 values, got 10"):
        proposals_from_proto(message)
    without = Proposals(PROPOSALS.token_ids, PROPOSALS.logprobs)
    assert proposals_to_proto(without).transitions == b""
    assert proposals_from_proto(proposals_to_proto(without)).transitions.size == 0


def test_a_cut_keeps_the_scores_of_the_candidates_that_it_keeps() -> None:
    found = PROPOSALS.cut(1)
    assert [ids.tolist() for ids in found.token_ids] == [[5], [7], [3]]
    assert found.transition_scores.tolist() == [-0.6875, 0.0]
    assert PROPOSALS.cut(9).transitions.tolist() == PROPOSALS.transitions.tolist()


def test_log_probabilities_after_a_candidate_leave_the_rest_its_share() -> None:
    assert PROPOSALS.logprobs_after(0, 0).tolist() == PROPOSALS.logprobs[0].tolist()
    first, second = 0.4 * math.exp(-0.6875), 0.3 * math.exp(1.375)
    total = first + second + 0.3
    after = np.exp(PROPOSALS.logprobs_after(1, 0))
    np.testing.assert_allclose(after, [first / total, second / total], rtol=1e-5)
    np.testing.assert_allclose(np.exp(PROPOSALS.logprobs_after(2, 1)), 0.5 * math.e**2 / (0.5 * math.e**2 + 0.5), 1e-5)
    without = Proposals(PROPOSALS.token_ids, PROPOSALS.logprobs)
    assert without.logprobs_after(1, 0).tolist() == PROPOSALS.logprobs[1].tolist()


def test_the_chain_takes_the_likeliest_after_the_one_before() -> None:
    chain = best_chain(PROPOSALS, 8, frozenset())
    assert chain.token_ids.tolist() == [5, 9, 3]
    first, second = 0.4 * math.exp(-0.6875), 0.3 * math.exp(1.375)
    shares = [0.6, second / (first + second + 0.3), 0.5 * math.e**2 / (0.5 * math.e**2 + 0.5)]
    np.testing.assert_allclose(chain.survival, np.cumprod(shares), rtol=1e-5)
    assert best_chain(Proposals(PROPOSALS.token_ids, PROPOSALS.logprobs), 2, frozenset()).token_ids.tolist() == [5, 7]
