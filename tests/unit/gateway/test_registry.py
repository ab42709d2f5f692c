"""Records: static ones stay, announced ones live as long as they are renewed."""

from __future__ import annotations

import pytest

from dartspec.gateway.registry import MAX_RECORDS, Record, Registry, ServiceKind
from dartspec.services.common.errors import InvalidArgument, ResourceExhausted

VERIFIER, NGRAM = ServiceKind.VERIFIER, ServiceKind.NGRAM


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def make(*static: Record) -> tuple[Registry, Clock]:
    clock = Clock()
    return Registry(static, interval=5.0, clock=clock), clock


def test_announced_records_expire_and_static_ones_do_not() -> None:
    registry, clock = make(Record(VERIFIER, "static:1"))
    assert registry.announce(Record(VERIFIER, "new:1")) == 5000
    registry.announce(Record(NGRAM, "unix:/n"))
    assert [record.address for record in registry.records(VERIFIER)] == ["static:1", "new:1"]
    assert [record.address for record in registry.records(NGRAM)] == ["unix:/n"]
    clock.now += 14.9
    registry.announce(Record(VERIFIER, "new:1"))
    clock.now += 0.2
    assert [record.address for record in registry.records(NGRAM)] == []
    assert [record.address for record in registry.records(VERIFIER)] == ["static:1", "new:1"]
    clock.now += 15.0
    assert [record.address for record in registry.records(VERIFIER)] == ["static:1"]


def test_what_a_static_service_says_of_itself_counts_while_it_says_it() -> None:
    registry, clock = make(Record(VERIFIER, "v:1"))
    registry.announce(Record(VERIFIER, "v:1", node="n1", draining=True))
    assert registry.records(VERIFIER) == [Record(VERIFIER, "v:1", node="n1", draining=True)]
    clock.now += 16
    assert registry.records(VERIFIER) == [Record(VERIFIER, "v:1")]


def test_bad_records_are_refused() -> None:
    registry, _ = make()
    with pytest.raises(InvalidArgument) as error:
        registry.announce(Record(VERIFIER, ""))
    assert error.value.field == "record.address"
    for index in range(MAX_RECORDS):
        registry.announce(Record(NGRAM, f"n:{index}"))
    with pytest.raises(ResourceExhausted) as full:
        registry.announce(Record(NGRAM, "one-more:1"))
    assert full.value.retry_after_ms == 5000
    registry.announce(Record(NGRAM, "n:0"))  # a known one is renewed all the same
