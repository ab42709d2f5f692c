"""The choice of a verifier by load."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest

from dartspec.gateway.router import Load, choose


def test_the_least_loaded_is_chosen() -> None:
    candidates = [("a", Load(reported=9)), ("b", Load(reported=2)), ("c", Load(reported=5))]
    assert {choose(candidates, random.Random(seed)) for seed in range(20)} == {"b"}


def test_what_was_sent_since_the_report_counts() -> None:
    candidates = [("a", Load(reported=2, own=2, sent=3)), ("b", Load(reported=4))]
    assert choose(candidates, random.Random(0)) == "b"


def test_own_sessions_count_when_the_report_is_older() -> None:
    assert Load(reported=0, own=7).cost == 7.0


def test_a_full_cache_costs() -> None:
    assert Load(kv_share=0.5).cost == 4.0
    assert Load(kv_share=1.0).cost > 1000.0
    assert choose([("full", Load(kv_share=0.95)), ("busy", Load(reported=20))], random.Random(0)) == "busy"


def test_equals_share_evenly() -> None:
    rng = random.Random(1)
    chosen = Counter(choose([("a", Load()), ("b", Load()), ("c", Load(reported=3))], rng) for _ in range(1000))
    assert set(chosen) == {"a", "b"}
    assert 400 < chosen["a"] < 600


def test_a_burst_on_stale_reports_spreads() -> None:
    loads = {name: Load() for name in "abcd"}
    rng = random.Random(2)
    for _ in range(40):
        name = choose(list(loads.items()), rng)
        loads[name] = replace(loads[name], own=loads[name].own + 1, sent=loads[name].sent + 1)
    assert {load.own for load in loads.values()} == {10}


def test_nobody_to_choose() -> None:
    with pytest.raises(ValueError, match="no candidates"):
        choose([], random.Random(0))
