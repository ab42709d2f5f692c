"""Windows of the policy against what fixed modes take for the same tokens."""

from __future__ import annotations

import numpy as np

from bench.control import Came, Phase, compare


def steady(easy: list[float], hard: list[float]) -> Came:
    """A stream that spends each second on one task: tokens of the second, or 0 when it is the other's."""
    tokens = np.array([easy, hard], float)
    return Came(tokens, (tokens > 0).astype(float))


def test_the_mixture_of_a_window_does_not_count_for_the_policy_or_against_it() -> None:
    # Drafts make 30 easy or 10 hard tokens a second, plain decoding 20 of both.
    fixed = {"dart": steady([30, 0] * 6, [0, 10] * 6), "plain": steady([20, 0] * 6, [0, 20] * 6)}
    mostly_easy = steady([30] * 8 + [0] * 4, [0] * 8 + [10] * 4)  # as with drafts, in another order
    found = compare(fixed | {"auto": mostly_easy}, [Phase(1, 12)], window=4, warm_up=0)
    # An easy second takes 1 with drafts and 1.5 plainly, a hard one 1 and 0.5: plain is better from three hard ones on.
    assert found["windows"] == [1.0] * 7 + [0.75, 0.5]
    assert found["worst"] == 0.5
    assert found["worst_at_s"] == 8


def test_windows_in_the_warm_up_of_a_new_load_are_told_apart() -> None:
    fixed = {"dart": steady([30] * 8, [0] * 8), "plain": steady([20] * 8, [0] * 8)}
    for each in fixed.values():
        each.tokens[1, :] = each.waited[1, :] = 1.0  # some hard ones, too, at 1 a second
    slow_start = Came(np.array([[15.0] * 2 + [30.0] * 6, [0.0] * 8]), np.ones((2, 8)))
    found = compare(fixed | {"auto": slow_start}, [Phase(1, 8)], window=2, warm_up=2)
    assert found["worst_with_warm_up"] == 0.5
    assert found["worst"] == 1.0
