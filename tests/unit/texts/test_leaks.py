"""The rule of the leak check against a naive one on joined words, and what counts as a word."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dartspec.services.common.errors import InvalidArgument
from dartspec.services.draft.texts.leaks import LEAST_WORDS, SHARED_WORDS, LeakCheck, counted, read_evaluation, words_of

TEXT = st.lists(st.sampled_from("ab"), min_size=1, max_size=40).map(" ".join)


def naive(evaluation: list[str], text: str) -> set[str]:
    """Every reason that holds, by searching joined words."""
    spaced = f" {text} "
    found = set()
    for prompt in evaluation:
        words = prompt.split()
        if prompt == text:
            found.add("equal")
        if LEAST_WORDS <= len(words) < SHARED_WORDS and f" {prompt} " in spaced:
            found.add("contains")
        for start in range(len(words) - SHARED_WORDS + 1):
            if f" {' '.join(words[start : start + SHARED_WORDS])} " in spaced:
                found.add("shares")
    return found


@given(st.lists(TEXT, max_size=4), TEXT)
def test_the_rule_is_the_naive_one(evaluation: list[str], text: str) -> None:
    expected = naive(evaluation, text)
    reason = LeakCheck(evaluation).reason(text)
    assert reason in expected if expected else reason is None
    assert ("equal" in expected) == (reason == "equal")


def test_words_ignore_case_marks_and_forms() -> None:
    assert words_of("Who\u2019s  the ①st_ONE, Straße?") == ("who", "s", "the", "1st", "one", "strasse")
    check = LeakCheck(["Name the three primary colors."])
    assert check.reason("*Name* the three\nprimary COLORS") == "equal"
    assert check.reason("Please name the three primary colors now") == "contains"
    assert check.reason("Please name the three primary colorss now") is None
    assert check.reason("") is None


def test_a_short_phrase_counts_only_when_it_is_all_that_is_said() -> None:
    check = LeakCheck(["Why is that?"])
    assert check.reason("why is that") == "equal"
    assert check.reason("And why is that so?") is None


def test_twelve_common_words_are_no_leak_and_thirteen_are() -> None:
    words = [f"w{i}" for i in range(20)]
    check = LeakCheck([" ".join(words)])
    assert check.reason("x " + " ".join(words[4:16]) + " y") is None
    assert check.reason("x " + " ".join(words[4:17]) + " y") == "shares"


def test_every_turn_of_every_file_counts(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(
        json.dumps({"turns": ["the first turn here", "the second turn here"]})
        + "\n\n"
        + json.dumps({"messages": [{"role": "user", "content": "a message of somebody"}]})
        + "\n"
    )
    (tmp_path / "b.jsonl").write_text(json.dumps({"prompt": "a prompt of its own"}) + "\n")
    (tmp_path / "notes.md").write_text("not read")
    check, files = read_evaluation([tmp_path])
    assert [file.name for file in files] == ["a.jsonl", "b.jsonl"]
    asked = ["The second turn here.", "a message of somebody", "a prompt of its own", "something else"]
    assert [check.reason(text) for text in asked] == ["equal", "equal", "equal", None]
    assert counted(["equal", "shares", "equal"]) == {"equal": 2, "contains": 0, "shares": 1}
    (tmp_path / "b.jsonl").write_text('{"prompt": "fine"}\n{"question": "no"}\n')
    with pytest.raises(InvalidArgument, match=r"--exclude: .*b\.jsonl, line 2: has neither 'messages' nor 'turns'"):
        read_evaluation([tmp_path])
