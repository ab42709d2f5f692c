"""How deep drafts are, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from dartspec.services.common.types import Tree
from dartspec.services.verifier.draft_depth import HELD, LEAST, DraftDepth

ROUND_MS, NODE_MS = 50.0, 0.25


def chain(*survival: float) -> Tree:
    count = len(survival)
    return Tree.chain(np.arange(count, dtype=np.int32), np.array(survival, np.float32))


def settle(drafts: DraftDepth, sessions: int, survival: tuple[float, ...], calibration: float = 1.0) -> list[int]:
    """Offsets after each of many passes of chains that are cut to what was drafted, after two nodes."""
    found = []
    for _ in range(40 * HELD):
        offsets = drafts.offsets(sessions, lambda: 2.0)
        drafts.observe(sessions, [chain(*survival[:offsets])] * sessions, ROUND_MS, NODE_MS, calibration)
        found.append(offsets)
    return found


@pytest.mark.parametrize(
    ("nodes", "offsets"), [(0.0, 2), (0.3, 2), (1.0, 2), (2.0, 3), (4.0, 4), (59.0, 7), (300.0, 8)]
)
def test_a_new_class_drafts_about_as_deep_as_trees_of_that_size_are(nodes: float, offsets: int) -> None:
    drafts = DraftDepth(8, 0.1)
    assert drafts.offsets(16, lambda: nodes) == offsets
    assert drafts.offsets(16, lambda: 8.0) == offsets  # it is asked once


def test_a_head_of_few_offsets_drafts_those() -> None:
    assert DraftDepth(1, 0.1).offsets(16, lambda: 59.0) == 1


def test_offsets_that_cost_nothing_are_all_drafted() -> None:
    survival = (0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1)
    found = settle(DraftDepth(8, 0.0), 16, survival)
    assert found[0] == 3
    assert found[-1] == 8
    assert set(np.diff(found)) == {0, 1}


def test_offsets_that_bring_less_than_they_cost_are_left_out() -> None:
    # 16 sessions commit 16 (1 + 0.9 + 0.8 + 0.1) = 45 tokens a round of 50 ms, so a node's 0.25 ms are worth 0.22
    # tokens. Beyond that offset 2 has 0.58 of a session's 2.8, a fifth, offset 3 nothing; an offset takes 16 x 0.5 of
    # 50 ms, a sixth.
    found = settle(DraftDepth(8, 0.5), 16, (0.9, 0.8, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1))
    assert found[0] == 3
    assert found[-1] == 2


def test_the_depth_is_where_worth_and_cost_cross() -> None:
    # With D offsets 4 sessions commit 4 (1 - 0.9^(D+1)) / 0.1 tokens in 50 ms. Offset t has 0.9^t less what a row's
    # 0.25 ms are worth: with 6 offsets 0.53 - 0.10 of 5.2, 8.2%; with 7 0.48 - 0.11 of 5.7, 6.4%; with 8 0.43 - 0.12 of
    # 6.1, 5.0%. At 7.2% of the time, 0.9 ms for each session, the seventh does not pay.
    survival = tuple(0.9**t for t in range(1, 9))
    found = settle(DraftDepth(8, 0.9), 4, survival)
    assert found[0] == 3
    assert set(found[-10 * HELD :]) == {6}


def test_estimates_that_promise_too_much_count_for_less() -> None:
    survival = (0.9, 0.8, 0.75, 0.7, 0.3, 0.2, 0.1, 0.05)
    deep, shallow = (settle(DraftDepth(8, 0.15), 16, survival, calibration)[-1] for calibration in (1.0, 0.1))
    assert shallow == LEAST < deep


def test_classes_of_concurrency_are_apart() -> None:
    drafts = DraftDepth(8, 0.5)
    assert settle(drafts, 16, (0.9, 0.8, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1))[-1] == 2
    assert drafts.offsets(1, lambda: 59.0) == 7
    assert drafts.offsets(12, lambda: 59.0) == drafts.offsets(23, lambda: 59.0) == 2  # of the class of 16


def test_what_nobody_drafted_for_is_not_learned_from() -> None:
    drafts = DraftDepth(8, 0.1)
    drafts.observe(16, [chain(0.5)], ROUND_MS, NODE_MS, 1.0)  # nobody drafted: it is a client's own tree
    before = drafts.offsets(16, lambda: 4.0)
    drafts.observe(16, [], ROUND_MS, NODE_MS, 1.0)
    assert drafts.offsets(16, lambda: 59.0) == before == 4
