"""The passes that are timed are what they are called, and both ways agree on them."""

from __future__ import annotations

from bench.processor_passes import SESSIONS, cases, sessions
from tests.unit.verifier.test_target import assert_close, target_of


def test_the_cases_are_passes_of_both_ways() -> None:
    target = target_of("llama")
    found = cases(sessions(target, SESSIONS, 40), 40)
    assert [sum(segment.rows for segment in segments) for segments in found.values()] == [1, 16, 60, 64, 128, 512]
    for what in ("16 sessions behind 40", "a tree behind 40", "16 small trees behind 40"):
        assert_close(target.forward(found[what]).hidden, target.eager(found[what]).hidden)
    assert found["a tree behind 40"][0].visible.sum(axis=1).max() == 6  # the root and five levels below it
