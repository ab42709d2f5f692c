"""Load for an API over HTTP that is not ours: what is sent, what is counted, and what is said when it answers oddly."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from dartspec.cli.load_plan import Job
from dartspec.cli.load_sample import Sample
from dartspec.cli.load_target import open_target
from dartspec.cli.prompts import Prompt
from dartspec.services.common.errors import DartspecError, FailedPrecondition, InvalidArgument, Unavailable
from tests.unit.cli.command import dartspec
from tests.unit.cli.fake_api import DONE, FakeApi, event, serving_api

# Text of no token of its own comes from servers that hold text back.
ANSWER = (event("", 0), event("a", 1), event("bcd", 3), ": still here\n\n", event("e", None), event("f", 1), DONE)
OVERLOADED = json.dumps({"error": {"message": "too many at once", "type": "rate_limit_error", "code": None}})


async def answered(api: FakeApi, model: str = "theirs") -> Sample:
    """One request, and what became of it."""
    sample = Sample("t", "auto")
    async with serving_api(api) as url, open_target(url, model, 0.0) as target:
        now = asyncio.get_running_loop().time()
        await target.answer(Job(0.0, "t", Prompt("1", "Hi"), 5, "auto"), sample, now)
    return sample


async def test_the_command(tmp_path: Path) -> None:
    file = tmp_path / "short questions.jsonl"
    file.write_text('{"prompt": "Hi"}\n{"prompt": "Ho"}\n')
    api = FakeApi(ANSWER)
    async with serving_api(api) as url:
        sent = ("bench", "serve", "--target", f"{url}/v1/", "--prompts", str(file), "--requests", "4", "--clients", "1")
        result = await dartspec(*sent, "--tokens", "5", "--mode", "auto", "--mode", "dart", DARTSPEC_API_KEY="secret")
    assert result.code == 0, result.err
    found = json.loads(result.out.splitlines()[-1])
    assert (found["all"]["finished"], found["all"]["tokens"], found["all"]["errors"]) == (4, 20, {})
    assert found["all"]["ttft_ms"]["p50"] > 0
    auto = {
        "model": "theirs",
        "messages": [{"role": "user", "content": "Hi"}],
        "max_tokens": 5,
        "temperature": 0.0,
        "stream": True,
        "logprobs": True,
    }
    ho = [{"role": "user", "content": "Ho"}]
    # Another server would refuse a field that it does not know, so "mode" is sent only where it was asked for.
    assert api.bodies == [
        auto,
        {**auto, "mode": "dart"},
        {**auto, "messages": ho},
        {**auto, "messages": ho, "mode": "dart"},
    ]
    assert {headers["x-dartspec-task"] for headers in api.headers} == {"short-questions"}
    assert {headers["Authorization"] for headers in api.headers} == {"Bearer secret"}


async def test_tokens_are_counted_by_their_log_probabilities() -> None:
    sample = await answered(FakeApi(ANSWER))
    assert ([count for _, count in sample.chunks], sample.finished) == ([1, 3, 1], True)


async def test_an_answer_may_have_no_token() -> None:
    sample = await answered(FakeApi([event("", 0), DONE]))
    assert (sample.chunks, sample.finished, sample.error) == ([], True, "")


@pytest.mark.parametrize(
    ("events", "code", "words"),
    [
        ([event("a", 1)], "CUT_OFF", "without its last message"),
        ([event("a", 1), 'data: {"error": {"message": "lost it", "code": "gone"}}\n\n', DONE], "gone", "lost it"),
        ([event("a", None), event("b", None), DONE], "NO_LOGPROBS", "cannot be counted"),
        (["data: {not JSON\n\n", DONE], "BAD_EVENT", "{not JSON"),
        (["data: [1]\n\n", DONE], "BAD_EVENT", "[1]"),
        (['data: {"choices": [7]}\n\n', DONE], "BAD_EVENT", '{"choices": [7]}'),
    ],
)
async def test_streams_that_are_no_whole_answer(events: Sequence[str], code: str, words: str) -> None:
    sample = await answered(FakeApi(events))
    assert (sample.error, sample.finished) == (code, False)
    assert words in sample.problem


@pytest.mark.parametrize(
    ("status", "text", "words"),
    [
        (429, OVERLOADED, "too many at once"),
        (502, "<html>\n Bad gateway", "<html> Bad gateway"),
        (400, '{"error": 1}', "1"),
    ],
)
async def test_refusals_have_their_status_and_words(status: int, text: str, words: str) -> None:
    sample = await answered(FakeApi(status=status, error=text))
    assert (sample.error, sample.finished) == (f"HTTP_{status}", False)
    assert words in sample.problem


@pytest.mark.parametrize(
    ("models", "status", "error", "said"),
    [
        ({"data": [{"id": "a"}, {"id": "b"}]}, 200, InvalidArgument, r"--model: name one: .*lists 2 \(a, b\)"),
        ({"data": []}, 200, InvalidArgument, r"--model: .*lists 0 \(none\)"),
        ({"models": ["a"]}, 200, FailedPrecondition, "lists no models; name one with --model"),
        ([1], 200, FailedPrecondition, "lists no models; name one with --model"),
        ({"error": {"message": "who are you?"}}, 401, FailedPrecondition, r"/models says HTTP 401: who are you\?"),
    ],
)
async def test_lists_of_models_that_name_no_model(
    models: Any, status: int, error: type[DartspecError], said: str
) -> None:
    with pytest.raises(error, match=said):
        await answered(FakeApi(status=status, models=models), model="")


async def test_no_server() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(Unavailable, match=f"--target: no API answers on {url}/v1/models"):
            async with open_target(url, "", 0.0):
                pass
        sample = Sample("t", "auto")
        async with open_target(url, "named", 0.0) as target:
            await target.answer(Job(0.0, "t", Prompt("1", "Hi"), 5, "auto"), sample, 0.0)
    assert sample.error == "ClientConnectorError"
    assert url.removeprefix("http://") in sample.problem


@pytest.mark.parametrize("target", ["", "http://", "http://:80", "http://h:port", "https://h:70000", "http://h/v1?x=1"])
async def test_wrong_targets_are_named(target: str) -> None:
    with pytest.raises(InvalidArgument, match="--target: must be") as error:
        async with open_target(target, "m", 0.0):
            pass
    assert repr(target) in error.value.message
