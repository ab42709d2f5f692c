"""Headers that say where an answer is made, of what kind it is and how long it may take, as gRPC's metadata does."""

from __future__ import annotations

import pytest

from tests.fakes import FakeVerifier
from tests.unit.gateway.conftest import StackMaker, recorded, until
from tests.unit.gateway.http_client import MESSAGES, http_stack, send

BODY = {"model": "toy", "prompt": "x", "max_tokens": 4}


async def test_a_named_replica_answers(stack: StackMaker) -> None:
    verifiers = [FakeVerifier(), FakeVerifier()]
    async with http_stack(stack, verifiers) as (s, client):
        url = f"{s.gateway.http}/v1/completions"
        for number, address in enumerate(link.address for link in s.gateway.fleet.links):
            for _ in range(3):
                await client.completions.create(**BODY, extra_headers={"x-dartspec-replica": address})
            assert sorted(len(verifier.opens) for verifier in verifiers) == [[0, 3], [3, 3]][number]
        status, body, _ = await send(url, BODY, headers={"X-Dartspec-Replica": "v:1"})
        assert (status, body["error"]["param"]) == (404, "x-dartspec-replica")
        assert body["error"]["message"].startswith("x-dartspec-replica: no verifier 'v:1'")
        status, body, _ = await send(url, BODY, headers={"x-dartspec-routing": "fastest"})
        assert (status, body["error"]["param"]) == (400, "x-dartspec-routing")
        assert "round_robin" in body["error"]["message"]


async def test_a_task_has_the_same_name_over_both_apis(stack: StackMaker, monkeypatch: pytest.MonkeyPatch) -> None:
    async with http_stack(stack, [FakeVerifier()]) as (s, client):
        seen = recorded(s, monkeypatch)
        await s.generate(metadata=[("dartspec-task", "mt-bench.1")])
        await client.completions.create(**BODY, extra_headers={"X-Dartspec-Task": "mt-bench.1"})
        await client.chat.completions.create(model="toy", messages=MESSAGES, extra_headers={"x-dartspec-task": "code"})
        await client.completions.create(**BODY)
        assert [request.route.task for request in seen] == ["mt-bench.1", "mt-bench.1", "code", ""]


@pytest.mark.parametrize("task", ["with space", "x" * 33, "a/b"])
async def test_a_wrong_task_is_refused_by_the_name_of_its_header(stack: StackMaker, task: str) -> None:
    async with http_stack(stack, [FakeVerifier()]) as (s, _):
        url = f"{s.gateway.http}/v1/completions"
        status, body, _ = await send(url, BODY, headers={"x-dartspec-task": task})
        assert (status, body["error"]["param"]) == (400, "x-dartspec-task")
        assert body["error"]["message"].startswith("x-dartspec-task: must be")
        assert repr(task) in body["error"]["message"]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_time_limit_ends_the_answer_and_reaches_the_verifier(stack: StackMaker, stream: bool) -> None:
    verifier = FakeVerifier()
    verifier.hang_after_events = 0
    async with http_stack(stack, [verifier]) as (s, _):
        url = f"{s.gateway.http}/v1/completions"
        body = {**BODY, "stream": stream}
        status, error, _ = await send(url, body, headers={"x-dartspec-timeout": "0.3"})
        assert (status, error["error"]["code"]) == (504, "deadline_exceeded")
        assert 0 < verifier.opens[0].time_left_ms <= 300
        await until(lambda: not s.gateway.generation.open_requests)


@pytest.mark.parametrize("value", ["0", "-1", "soon", "nan", "inf", ""])
async def test_a_wrong_time_limit_is_refused(stack: StackMaker, value: str) -> None:
    async with http_stack(stack, [FakeVerifier()]) as (s, _):
        headers = {"x-dartspec-timeout": value}
        status, error, _ = await send(f"{s.gateway.http}/v1/completions", BODY, headers=headers)
        assert (status, error["error"]["param"]) == (400, "x-dartspec-timeout")
