"""`dartspec generate` against a scripted gateway: what it sends, what it prints, how it ends."""

from __future__ import annotations

import asyncio
import json
import signal
import sys

import grpc
import pytest

from dartspec.cli import client as client_module
from dartspec.services.common.errors import InternalError, InvalidArgument, ResourceExhausted, Unavailable
from dartspec.v1 import gateway_pb2
from tests.unit.cli.command import dartspec
from tests.unit.cli.fake_gateway import DART_LEDGER, FakeGateway, serving

REQUIRED_KEYS = {
    "identical",
    "differing_tokens",
    "plain_tokens_per_s",
    "dart_tokens_per_s",
    "speedup",
    "mean_committed",
    "mean_accepted",
    "t_draft_ms",
    "t_search_ms",
    "t_verify_ms",
    "t_other_ms",
}


async def test_streams_text_and_sends_only_what_was_asked():
    gateway = FakeGateway()
    async with serving(gateway) as address:
        result = await dartspec("generate", "hello", "--gateway", address)
    assert result.code == 0
    assert result.out == "5 6 7 8 9 \n"
    assert "5 tokens" in result.err
    assert "; mode dart, M 2.50, seed 1234" in result.err
    (request,) = gateway.requests
    assert [(m.role, m.content) for m in request.chat.messages] == [("user", "hello")]
    assert request.mode == gateway_pb2.MODE_AUTO
    assert request.sampling.max_tokens == 256
    assert not request.sampling.HasField("temperature")
    assert not request.sampling.HasField("top_p")
    assert not request.HasField("seed")
    assert request.model == ""


async def test_every_request_flag_reaches_the_gateway():
    gateway = FakeGateway()
    flags = ["--max-tokens", "2", "--temperature", "0.5", "--top-k", "7", "--top-p", "0.9", "--min-p", "0.1"]
    flags += ["--seed", str(2**64 - 1), "--stop", "a", "--stop", "b c", "--mode", "plain", "--system", "be brief"]
    flags += ["--top-logprobs", "20"]
    flags += ["--template-arg", "enable_thinking=false", "--template-arg", "name=x", "--model", "m"]
    async with serving(gateway) as address:
        result = await dartspec("generate", "hello", "--gateway", address, *flags)
    assert result.code == 0, result.err
    (request,) = gateway.requests
    sampling = request.sampling
    assert (sampling.max_tokens, sampling.temperature, sampling.top_k) == (2, 0.5, 7)
    assert (sampling.top_p, sampling.min_p, sampling.top_logprobs) == (0.9, 0.1, 20)
    assert request.seed == 2**64 - 1
    assert list(request.stop) == ["a", "b c"]
    assert request.mode == gateway_pb2.MODE_PLAIN
    assert [(m.role, m.content) for m in request.chat.messages] == [("system", "be brief"), ("user", "hello")]
    assert dict(request.chat.template_arguments) == {"enable_thinking": False, "name": "x"}
    assert request.model == "m"


async def test_auto_means_both_in_the_report(monkeypatch):
    monkeypatch.setitem(DART_LEDGER, "mode", gateway_pb2.MODE_AUTO)
    async with serving(FakeGateway()) as address:
        result = await dartspec("generate", "hello", "--gateway", address)
    assert "; mode auto (both), M 2.50, seed 1234" in result.err


async def test_raw_prompt_is_text():
    gateway = FakeGateway()
    async with serving(gateway) as address:
        await dartspec("generate", "hello", "--gateway", address, "--raw")
    assert gateway.requests[0].text == "hello"


async def test_json_of_one_mode_is_the_last_line():
    async with serving(FakeGateway()) as address:
        result = await dartspec("generate", "hello", "--gateway", address, "--json", "--mode", "dart")
    value = json.loads(result.out.splitlines()[-1])
    (answer,) = value["answers"]
    assert answer["token_ids"] == [5, 6, 7, 8, 9]
    assert answer["text"] == "5 6 7 8 9 "
    assert answer["reason"] == "length"
    assert answer["ledger"]["mode"] == "dart"
    assert answer["top_logprobs"] == []
    assert value["seed"] == 1234
    assert value["dtype"] is None


async def test_json_lists_the_likeliest_tokens_of_each_position():
    async with serving(FakeGateway()) as address:
        result = await dartspec("generate", "hello", "--gateway", address, "--json", "--top-logprobs", "2")
    (answer,) = json.loads(result.out.splitlines()[-1])["answers"]
    assert answer["top_logprobs"] == [[[token, -0.5], [token + 1, -1.5]] for token in (5, 6, 7, 8, 9)]
    assert "top_logprobs" not in result.out.replace(result.out.splitlines()[-1], "")


async def test_compare_runs_both_modes_with_one_seed_and_exits_0_when_equal():
    gateway = FakeGateway()
    async with serving(gateway) as address:
        result = await dartspec("generate", "hello", "--gateway", address, "--compare", "--json")
    assert result.code == 0, result.err
    assert "identical: yes" in result.out
    value = json.loads(result.out.splitlines()[-1])
    assert value.keys() >= REQUIRED_KEYS
    assert value["identical"] is True
    assert value["differing_tokens"] == 0
    assert value["mean_committed"] == 2.5
    assert value["mean_accepted"] == 1.5
    assert value["t_verify_ms"] == 20.0
    assert value["plain_decode_tokens_per_s"] == pytest.approx(4 / 0.1)
    assert value["dart_decode_tokens_per_s"] == pytest.approx(4 / 0.05)
    # Two short warm-ups, then each mode once.
    assert [r.mode for r in gateway.requests] == [gateway_pb2.MODE_PLAIN, gateway_pb2.MODE_DART] * 2
    assert [r.sampling.max_tokens for r in gateway.requests] == [16, 16, 256, 256]
    assert len({r.seed for r in gateway.requests}) == 1


async def test_compare_exits_3_and_says_where_tokens_differ():
    answers = {gateway_pb2.MODE_PLAIN: [5, 6, 7, 8], gateway_pb2.MODE_DART: [5, 6, 9, 8, 1]}
    async with serving(FakeGateway(answers)) as address:
        result = await dartspec("generate", "hello", "--gateway", address, "--compare", "--json", "--seed", "3")
    assert result.code == 3
    assert "first at token 2: plain 7, DART 9" in result.out
    value = json.loads(result.out.splitlines()[-1])
    assert value["identical"] is False
    assert value["differing_tokens"] == 2
    assert value["seed"] == 3
    assert value["differences"] == [
        {
            "prompt": "1",
            "index": 2,
            "plain_token": 7,
            "dart_token": 9,
            "gap": 0.25,
        }
    ]


async def test_prompts_file_takes_turns_in_going_first(tmp_path):
    file = tmp_path / "prompts.jsonl"
    file.write_text("".join(json.dumps({"id": n, "turns": [f"question {n}"]}) + "\n" for n in range(3)))
    gateway = FakeGateway()
    async with serving(gateway) as address:
        arguments = [
            "--gateway",
            address,
            "--prompts",
            str(file),
            "--limit",
            "2",
            "--repeat",
            "2",
            "--compare",
            "--json",
        ]
        result = await dartspec("generate", *arguments)
    assert result.code == 0, result.err
    assert json.loads(result.out.splitlines()[-1])["prompts"] == 4
    plain, dart = gateway_pb2.MODE_PLAIN, gateway_pb2.MODE_DART
    assert [(r.chat.messages[0].content, r.mode) for r in gateway.requests[2:]] == [
        ("question 0", plain),
        ("question 0", dart),
        ("question 1", dart),
        ("question 1", plain),
        ("question 0", plain),
        ("question 0", dart),
        ("question 1", dart),
        ("question 1", plain),
    ]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (InvalidArgument("sampling.temperature", "must be in [0, 100], got nan"), 2),
        (ResourceExhausted("full; try again", retry_after_ms=5), 1),
        (InternalError("our fault"), 1),
    ],
)
async def test_the_gateways_errors_become_one_line(error, code):
    async with serving(FakeGateway(error=error)) as address:
        result = await dartspec("generate", "hello", "--gateway", address)
    assert result.code == code
    assert result.err.strip() == f"error: {error.message}"
    assert result.out == ""


async def test_an_error_after_text_begins_a_line_of_its_own():
    async with serving(FakeGateway(late_error=InternalError("our fault"))) as address:
        result = await dartspec("generate", "hello", "--gateway", address)
    assert (result.code, result.out, result.err) == (1, "5 6 7 8 9 \n", "error: our fault\n")


async def test_json_has_null_for_an_infinite_margin():
    async with serving(FakeGateway(margin=float("inf"))) as address:
        result = await dartspec("generate", "hello", "--gateway", address, "--json")
    line = result.out.splitlines()[-1]
    assert "Infinity" not in line
    assert json.loads(line)["answers"][0]["margins"] == [None] * 5


def test_a_gateway_that_stops_says_so():
    empty = grpc.aio.Metadata()
    error = grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, empty, empty, "Cancelling all calls")
    mapped = client_module.mapped_error(error, "127.0.0.1:7000")
    assert isinstance(mapped, Unavailable)
    assert mapped.message == "the gateway is shutting down (127.0.0.1:7000)"


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
async def test_interruption_in_mid_answer(signum, code):
    gateway = FakeGateway(hangs=True)
    async with serving(gateway) as address:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "dartspec.cli.main", "generate", "hello", "--gateway", address),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        async with asyncio.timeout(30):
            while not gateway.requests:
                await asyncio.sleep(0.01)
        process.send_signal(signum)
        out, err = await process.communicate()
    assert process.returncode == code
    assert (out, err.strip()) == (b"", b"")


async def test_no_gateway_says_how_to_get_one(tmp_path):
    result = await dartspec("generate", "hello", "--gateway", f"unix:{tmp_path}/none.sock")
    assert result.code == 1
    assert result.err.startswith("error: no gateway answers on")
    assert "dartspec up" in result.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "give either a prompt or --prompts FILE"),
        (["hello", "--prompts", "x"], "give either a prompt or --prompts FILE"),
        (["hello", "--limit", "2"], "--limit needs --prompts"),
        (["hello", "--dtype", "float32"], "--dtype belongs to a stack of its own: it needs --local"),
        (["hello", "--local", "--gateway", "a:1"], "leave out --gateway"),
        (["hello", "--max-tokens", "0"], "--max-tokens"),
        (["hello", "--seed", "-1"], "--seed"),
        (["hello", "--local", "--temperature", "nan"], "'--temperature': must be between 0 and 100, got nan"),
        (["hello", "--local", "--top-p", "0"], "'--top-p': must be above 0 and at most 1, got 0.0"),
        (["hello", "--local", "--min-p", "1.5"], "'--min-p': must be between 0 and 1, got 1.5"),
        (["", "--local"], "PROMPT must not be empty"),
        ([" \n", "--local"], "PROMPT must not be empty"),
        (["hello", "--top-logprobs", "21"], "'--top-logprobs': must be between 0 and 20, got 21"),
        (["hello", "--top-logprobs", "-1"], "--top-logprobs"),
        (["hello", "--template-arg", "novalue"], "must be KEY=VALUE, got 'novalue'"),
        (["hello", "--mode", "fast"], "--mode"),
        (["--prompts", "/nonexistent"], "cannot be read"),
    ],
)
async def test_wrong_use_is_one_line_and_exit_code_2(arguments, said):
    result = await dartspec("generate", *arguments)
    assert result.code == 2
    assert result.err.startswith("error: ")
    assert said in result.err
    assert len(result.err.splitlines()) == 1
