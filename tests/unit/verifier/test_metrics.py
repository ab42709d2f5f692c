"""What Prometheus sees of an engine."""

from __future__ import annotations

import urllib.request
from dataclasses import replace

import pytest
from prometheus_client.parser import text_string_to_metric_families

from dartspec.services.common.metrics import MetricsEndpoint
from dartspec.services.verifier.decoder import Decoder
from dartspec.services.verifier.metrics import EngineCollector

from .driver import GREEDY, IDLE, FakeOwner, chain, gauges, running, settle
from .tiny import plain, tiny_decoder

GAUGES = (
    *("sessions", "waiting_sessions", "running_sessions", "queued", "prompt_tokens_left", "kv_used_positions"),
    "draining",
)


class Scrape:
    """One reading of the endpoint."""

    def __init__(self, endpoint: MetricsEndpoint) -> None:
        with urllib.request.urlopen(f"http://{endpoint.address}/metrics", timeout=20) as answer:
            families = text_string_to_metric_families(answer.read().decode())
            samples = [sample for family in families for sample in family.samples]
        self.values = {(each.name, tuple(sorted(each.labels.items()))): each.value for each in samples}

    def __call__(self, name: str, **labels: str) -> float:
        return self.values[f"dartspec_verifier_{name}", tuple(sorted(labels.items()))]


@pytest.fixture(scope="module")
def decoder() -> Decoder:
    return tiny_decoder()


def test_everything_that_was_done_is_counted(decoder: Decoder) -> None:
    truth = plain(decoder, [5, 6, 7], replace(GREEDY, max_tokens=12))
    wrong = (truth[3] + 1) % 50 + 3
    with running(decoder, sessions=3, kv_positions=4096) as engine, MetricsEndpoint("127.0.0.1:0") as endpoint:
        endpoint.show(EngineCollector(engine))
        assert {Scrape(endpoint)(name) for name in GAUGES} == {0.0}
        owner = FakeOwner(engine)
        owner.open(1, draft_after=True)
        n = owner.round(1).n
        owner.verify(1, n, chain([*truth[1:3], wrong]))
        owner.round(1)
        owner.open(2, [])
        owner.failure(2)
        owner.open(3)
        owner.round(3)
        settle(engine)
        seen = Scrape(endpoint)
        for session in (1, 3):
            owner.close(session)
        engine.drain().result(60)
        engine.drained.result(60)
        owner.open(4)
        assert owner.failure(4).error.retry_after_ms > 0
        assert gauges(engine) == IDLE
        end = Scrape(endpoint)
    assert (seen("sessions"), seen("running_sessions"), seen("waiting_sessions"), seen("queued")) == (2, 2, 0, 0)
    assert (seen("sessions_limit"), seen("kv_capacity_positions")) == (3, 4096)
    assert seen("kv_used_positions") == 1024
    assert (seen("committed_tokens_total"), seen("prompt_tokens_total")) == (1 + 3 + 1, 6)
    assert (seen("rounds_total"), seen("draft_tokens_total"), seen("accepted_tokens_total")) == (1, 3, 2)
    verified = [seen("draft_tokens_per_position_total", position=str(depth)) for depth in (1, 2, 3)]
    accepted = [seen("accepted_tokens_per_position_total", position=str(depth)) for depth in (1, 2, 3)]
    assert (verified, accepted) == ([1, 1, 1], [1, 1, 0])
    for part, count in (("pass", 3), ("draft", 1), ("own", 3)):
        buckets = seen("step_seconds_bucket", part=part, le="+Inf")
        assert buckets == seen("step_seconds_count", part=part) == count
        assert seen("step_seconds_sum", part=part) > 0
    assert seen("time_to_first_token_seconds_count") == 2
    assert seen("failures_total", code="INVALID_ARGUMENT") == 1
    assert seen("evictions_total") == 0
    assert {end(name) for name in GAUGES if name != "draining"} == {0.0}
    assert end("draining") == 1
    assert end("failures_total", code="UNAVAILABLE") == 1
    assert end("committed_tokens_total") == 5
