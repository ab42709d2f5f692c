"""Stop strings, against a search of the whole text."""

from __future__ import annotations

import random

import pytest

from dartspec.gateway.stops import StopStrings


def naive(text: str, stops: list[str]) -> tuple[str, str]:
    """Look at ever longer prefixes of the text for a stop string at their end."""
    for end in range(len(text) + 1):
        done = [stop for stop in stops if text[:end].endswith(stop)]
        if done:
            longest = max(done, key=len)
            return text[: end - len(longest)], longest
    return text, ""


def run(text: str, stops: list[str], rng: random.Random) -> tuple[str, str]:
    scanner, out, at = StopStrings(stops), "", 0
    while at < len(text):
        step = rng.randrange(1, 5)
        piece, stop = scanner.push(text[at : at + step])
        out += piece
        if stop:
            return out, stop
        at += step
    return out + scanner.finish(), ""


@pytest.mark.parametrize("seed", range(20))
def test_random_texts_and_stops_match_the_naive_search(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(200):
        text = "".join(rng.choices("ab€", k=rng.randrange(30)))
        stops = ["".join(rng.choices("ab€", k=rng.randrange(1, 6))) for _ in range(rng.randrange(1, 4))]
        assert run(text, stops, rng) == naive(text, stops)


def test_only_what_may_become_a_stop_is_held_back() -> None:
    scanner = StopStrings(["END."])
    assert scanner.push("the E") == ("the ", "")
    assert scanner.push("EN") == ("E", "")
    assert scanner.push("DS ") == ("ENDS ", "")
    assert scanner.push("EN") == ("", "")
    assert scanner.finish() == "EN"


def test_a_self_overlapping_stop_is_found() -> None:
    scanner = StopStrings(["aab"])
    assert scanner.push("aaab") == ("a", "aab")


def test_without_stops_text_passes_at_once() -> None:
    assert StopStrings([]).push("anything") == ("anything", "")
