"""What is refused over HTTP: the right status, and the parameter's name as that API calls it."""

from __future__ import annotations

from typing import Any

import aiohttp
import openai
import pytest

from dartspec.gateway.http import server
from dartspec.gateway.http.errors import error_body, kind_of
from dartspec.services.common import errors
from dartspec.services.common.errors import (
    DartspecError,
    DeadlineExceeded,
    InternalError,
    ResourceExhausted,
    Unavailable,
)
from tests.fakes import FakeVerifier
from tests.unit.gateway.conftest import StackMaker, until
from tests.unit.gateway.http_client import MESSAGES, get_text, http_stack, send

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
TOOL = {"type": "function", "function": {"name": "f"}}

# Path, fields that make a good body bad, the parameter that is named.
BAD: list[tuple[str, dict[str, Any], str]] = [
    (CHAT, {"messages": None}, "messages"),
    (CHAT, {"messages": []}, "messages"),
    (CHAT, {"messages": {}}, "messages"),
    (CHAT, {"messages": ["hello"]}, "messages[0]"),
    (CHAT, {"messages": [{"role": "user"}]}, "messages[0].content"),
    (CHAT, {"messages": [{"content": "x"}]}, "messages[0].role"),
    (CHAT, {"messages": [{"role": 1, "content": "x"}]}, "messages[0].role"),
    (CHAT, {"messages": [{"role": "user", "content": "x", "tool_calls": [TOOL]}]}, "messages[0].tool_calls"),
    (CHAT, {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0]"),
    (CHAT, {"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
    (CHAT, {"messages": [{"role": "user", "content": "\ud83d"}]}, "messages[0].content"),
    (CHAT, {"messages": [{"role": "user", "content": "x" * 100}]}, "messages"),
    (CHAT, {"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
    (CHAT, {"tools": [TOOL]}, "tools"),
    (CHAT, {"functions": [TOOL]}, "functions"),
    (CHAT, {"tool_choice": "required"}, "tool_choice"),
    (CHAT, {"response_format": {"type": "json_object"}}, "response_format"),
    (CHAT, {"audio": {"voice": "x"}}, "audio"),
    (CHAT, {"modalities": ["text", "audio"]}, "modalities"),
    (CHAT, {"reasoning_effort": "low"}, "reasoning_effort"),
    (CHAT, {"n": 9}, "n"),
    (CHAT, {"n": 0}, "n"),
    (CHAT, {"n": True}, "n"),
    (CHAT, {"n": "2"}, "n"),
    (CHAT, {"temperature": "hot"}, "temperature"),
    (CHAT, {"temperature": -1}, "temperature"),
    (CHAT, {"temperature": 10**400}, "temperature"),
    (CHAT, {"top_p": 0}, "top_p"),
    (CHAT, {"top_k": -2}, "top_k"),
    (CHAT, {"top_k": 1.5}, "top_k"),
    (CHAT, {"min_p": 2}, "min_p"),
    (CHAT, {"presence_penalty": 3}, "presence_penalty"),
    (CHAT, {"repetition_penalty": 0}, "repetition_penalty"),
    (CHAT, {"logit_bias": {"x": 1}}, "logit_bias"),
    (CHAT, {"logit_bias": {"100000": 1}}, "logit_bias"),
    (CHAT, {"logit_bias": {"5": "1"}}, "logit_bias"),
    (CHAT, {"logit_bias": [1]}, "logit_bias"),
    (CHAT, {"max_tokens": 0}, "max_tokens"),
    (CHAT, {"max_tokens": -1}, "max_tokens"),
    (CHAT, {"max_tokens": 5, "max_completion_tokens": 6}, "max_tokens"),
    (CHAT, {"min_tokens": 9, "max_tokens": 8}, "min_tokens"),
    (CHAT, {"ignore_eos": 1}, "ignore_eos"),
    (CHAT, {"seed": 2**64}, "seed"),
    (CHAT, {"seed": 0.5}, "seed"),
    (CHAT, {"stop": ["x", ""]}, "stop[1]"),
    (CHAT, {"stop": ["x"] * 17}, "stop"),
    (CHAT, {"stop": 5}, "stop"),
    (CHAT, {"stop": [5]}, "stop[0]"),
    (CHAT, {"stop_token_ids": [100_000]}, "stop_token_ids"),
    (CHAT, {"stop_token_ids": ["5"]}, "stop_token_ids[0]"),
    (CHAT, {"logprobs": 1}, "logprobs"),
    (CHAT, {"top_logprobs": 1}, "top_logprobs"),
    (CHAT, {"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    (CHAT, {"stream": "yes"}, "stream"),
    (CHAT, {"stream_options": {"include_usage": True}}, "stream_options"),
    (CHAT, {"stream": True, "stream_options": {"x": 1}}, "stream_options.x"),
    (CHAT, {"mode": "fast"}, "mode"),
    (CHAT, {"model": 5}, "model"),
    (CHAT, {"request_id": "a\nb"}, "request_id"),
    (CHAT, {"temprature": 0.5}, "temprature"),
    (TEXT, {"prompt": None}, "prompt"),
    (TEXT, {"prompt": ""}, "prompt"),
    (TEXT, {"prompt": []}, "prompt"),
    (TEXT, {"prompt": 5}, "prompt"),
    (TEXT, {"prompt": ["x", 5]}, "prompt[1]"),
    (TEXT, {"prompt": [5, "x"]}, "prompt[1]"),
    (TEXT, {"prompt": [100_000]}, "prompt"),
    (TEXT, {"prompt": "x" * 100}, "prompt"),
    (TEXT, {"prompt": [1] * 100}, "prompt"),
    (TEXT, {"prompt": ["x"] * 9, "n": 8}, "n"),
    (TEXT, {"best_of": 2}, "best_of"),
    (TEXT, {"echo": True}, "echo"),
    (TEXT, {"suffix": "x"}, "suffix"),
    (TEXT, {"logprobs": True}, "logprobs"),
    (TEXT, {"logprobs": 21}, "logprobs"),
    (TEXT, {"messages": MESSAGES}, "messages"),
]


async def test_each_bad_body_names_its_parameter(stack: StackMaker) -> None:
    verifier = FakeVerifier(context_length=64)
    async with http_stack(stack, [verifier]) as (s, client):
        for path, fields, param in BAD:
            good = {"messages": MESSAGES} if path == CHAT else {"prompt": "hello"}
            status, body, _ = await send(s.gateway.http + path, {"model": "toy", **good, **fields})
            error = body["error"]
            case = (path, fields, body)
            assert (status, error["param"], error["type"], error["code"]) == (
                400,
                param,
                "invalid_request_error",
                None,
            ), case
            assert error["message"].startswith(param), case
        assert verifier.opens == []
        assert (await client.completions.create(model="toy", prompt="hello")).usage.completion_tokens == 16
        assert s.gateway.generation.open_requests == 0


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"5", b'"x"', b"\xff", b'{"n": NaN}', b'{"n": Infinity}', b"[" * 100_000, b'{"a": ' * 10_000],
)
async def test_bodies_that_are_no_object(stack: StackMaker, body: bytes) -> None:
    async with http_stack(stack, [FakeVerifier()]) as (s, _):
        status, answer, _ = await send(s.gateway.http + CHAT, body)
    assert (status, answer["error"]["param"], answer["error"]["type"]) == (400, None, "invalid_request_error")


async def test_paths_methods_and_sizes(stack: StackMaker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MAX_MESSAGE_BYTES", 1000)
    async with http_stack(stack, [FakeVerifier()]) as (s, _):
        for path, method, body, status in [
            ("/v1/embeddings", "POST", {}, 404),
            ("/nothing", "GET", None, 404),
            (CHAT, "GET", None, 405),
            (CHAT, "POST", b"x" * 1001, 413),
        ]:
            got, answer, _ = await send(s.gateway.http + path, body, method=method)
            assert got == status
            assert answer["error"].keys() == {"message", "type", "param", "code"}


async def test_unknown_models(stack: StackMaker) -> None:
    async with http_stack(stack, [FakeVerifier()]) as (_, client):
        with pytest.raises(openai.NotFoundError) as failure:
            await client.chat.completions.create(model="gpt-9", messages=MESSAGES)
        assert (failure.value.param, failure.value.code) == ("model", "model_not_found")
        assert "served: toy" in failure.value.message
        with pytest.raises(openai.NotFoundError):
            await client.models.retrieve("gpt-9")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("refusal", "expected", "code"),
    [
        (ResourceExhausted("full", retry_after_ms=1700), openai.RateLimitError, "rate_limit_exceeded"),
        (DeadlineExceeded("too late"), openai.InternalServerError, "deadline_exceeded"),
        (InternalError("CUDA error"), openai.InternalServerError, "internal_error"),
        (Unavailable("going"), openai.InternalServerError, "unavailable"),
    ],
)
async def test_what_a_verifier_refuses_before_the_first_token_has_a_status(
    stack: StackMaker, refusal: DartspecError, expected: type[openai.APIStatusError], code: str, stream: bool
) -> None:
    verifier = FakeVerifier()
    verifier.reject = refusal
    async with http_stack(stack, [verifier]) as (s, client):
        with pytest.raises(expected) as failure:
            await client.chat.completions.create(model="toy", messages=MESSAGES, stream=stream)
        assert failure.value.code == code
        assert failure.value.status_code == kind_of(refusal).status
        retry = failure.value.response.headers
        wanted = ("2", "1700") if refusal.retry_after_ms else (None, None)
        assert (retry.get("retry-after"), retry.get("retry-after-ms")) == wanted
        assert s.gateway.generation.open_requests == 0


async def test_without_any_verifier(stack: StackMaker) -> None:
    async with http_stack(stack) as (s, client):
        with pytest.raises(openai.InternalServerError) as failure:
            await client.chat.completions.create(model="toy", messages=MESSAGES)
        assert failure.value.status_code == 503
        assert failure.value.response.headers["retry-after"] == "1"
        assert (await client.models.list()).data == []
        assert await get_text(s.gateway.http + "/healthz") == (200, "ok\n")
        assert (await get_text(s.gateway.http + "/readyz"))[0] == 503


async def test_readiness_follows_the_verifiers(stack: StackMaker) -> None:
    verifier = FakeVerifier()
    async with http_stack(stack, [verifier]) as (s, client):
        assert await get_text(s.gateway.http + "/readyz") == (200, "ok\n")
        verifier.draining = True
        await client.completions.create(model="toy", prompt="hello", max_tokens=1)  # its report says so
        assert (await get_text(s.gateway.http + "/readyz"))[0] == 503
        assert await get_text(s.gateway.http + "/healthz") == (200, "ok\n")


@pytest.mark.parametrize("n", [1, 3])
async def test_an_error_in_a_stream_is_its_last_event(stack: StackMaker, n: int) -> None:
    verifier = FakeVerifier()
    verifier.fail_at = {5: InternalError("CUDA error")}
    wanted = {"model": "toy", "messages": MESSAGES, "max_tokens": 300, "stream": True, "n": n, "mode": "plain"}
    async with http_stack(stack, [verifier]) as (s, client):
        status, text = await post_text(s.gateway.http + CHAT, wanted)
        assert status == 200
        *events, last, end = text.split("\n\n")
        assert end == ""
        assert last.startswith('event: error\ndata: {"error":{')
        assert '"code":"internal_error"' in last
        assert len(events) >= n
        assert "[DONE]" not in text
        verifier.fail_at = {5: InternalError("CUDA error")}
        stream = await client.chat.completions.create(
            model="toy", messages=MESSAGES, max_tokens=300, stream=True, extra_body={"mode": "plain"}
        )
        with pytest.raises(openai.APIError, match="CUDA error"):
            _ = [part async for part in stream]
        await until(lambda: not verifier.sessions)
        assert s.gateway.generation.open_requests == 0


async def post_text(url: str, body: dict[str, Any]) -> tuple[int, str]:
    async with aiohttp.ClientSession() as session, session.post(url, json=body) as reply:
        return reply.status, await reply.text()


async def test_a_good_stream_ends_with_done(stack: StackMaker) -> None:
    async with http_stack(stack, [FakeVerifier()]) as (s, _):
        status, text = await post_text(s.gateway.http + TEXT, {"prompt": "hello", "stream": True})
    assert status == 200
    assert text.endswith("}\n\ndata: [DONE]\n\n")
    assert text.count("data: [DONE]") == 1
    assert text.isascii()


def test_every_error_has_a_status_and_unknown_ones_are_ours() -> None:
    classes = [cls for cls in vars(errors).values() if isinstance(cls, type) and issubclass(cls, DartspecError)]
    assert len(classes) > 9
    for cls in classes:
        error = cls("sampling.top_p", "x") if cls is errors.InvalidArgument else cls("x")
        kind, body = kind_of(error), error_body(error)["error"]
        assert 400 <= kind.status < 600
        assert (body["type"], body["code"]) == (kind.type, kind.code)
        assert (kind.status == 500) == (cls in (DartspecError, InternalError))

    class Stalled(Unavailable):
        pass

    assert kind_of(Stalled("x")).status == 503
