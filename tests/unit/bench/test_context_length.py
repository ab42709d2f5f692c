"""How chats of a length are made."""

from __future__ import annotations

from bench.context_length import beginning, turns_of
from dartspec.services.evaluate.record import Recording


def test_a_turn_is_closed_once_whether_the_answer_ended_or_was_cut() -> None:
    ended = Recording(2, frozenset({9}), tokens=[1, 2, 5, 9])
    cut = Recording(1, frozenset({9}), tokens=[1, 5, 6])
    assert turns_of([ended, cut], [9, 0]) == [[1, 2, 5, 9, 0], [1, 5, 6, 9, 0]]


def test_a_chat_fills_its_room_with_the_last_of_the_turns() -> None:
    turns = [[10, 11, 12], [20, 21]]
    assert beginning([1], turns, 5) == [1, 11, 12, 20, 21]
    assert beginning([1], turns, 100) == [1, 10, 11, 12, 20, 21]
    assert beginning([1], turns, 1) == [1]
