"""Answers over HTTP, read with the official client, are those of gRPC: whole, in a stream, and several at once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dartspec.gateway.sampling_defaults import choice_seed
from dartspec.v1 import common_pb2, gateway_pb2
from tests.fakes import FakeNgram, FakeVerifier, byte_tokenizer, plain_answer, scripted_target
from tests.unit.gateway.conftest import Reply, Stack, StackMaker, until
from tests.unit.gateway.http_client import MESSAGES, http_stack

TOKENIZER = byte_tokenizer()
EOS = TOKENIZER.token_to_id("<eos>")
SCRIPT = TOKENIZER.encode("Zürich costs 5 € a day, hello world").ids
CHAT = gateway_pb2.Chat(messages=[gateway_pb2.ChatMessage(role="user", content="hello")])


async def over_grpc(s: Stack, mode: str = "auto", seed: int = 7, **fields: Any) -> Reply:
    fields = {"chat": CHAT, "sampling": {"temperature": 0.7, "max_tokens": 30}, **fields}
    return await s.generate(mode=f"MODE_{mode.upper()}", seed=seed, **fields)


async def streamed(stream: Any) -> list[Any]:
    return [chunk async for chunk in stream]


@pytest.mark.parametrize("mode", ["plain", "dart", "auto"])
@pytest.mark.parametrize("stop", [[], ["osts"]])
async def test_a_chat_is_the_answer_over_grpc(stack: StackMaker, mode: str, stop: list[str]) -> None:
    async with http_stack(stack, [FakeVerifier(scripted_target(SCRIPT))], [FakeNgram()]) as (s, client):
        expected = await over_grpc(s, mode, stop=stop)
        got = await client.chat.completions.create(
            model="toy",
            messages=MESSAGES,
            temperature=0.7,
            max_completion_tokens=30,
            seed=7,
            stop=stop or None,
            logprobs=True,
            extra_body={"mode": mode},
        )
    (choice,) = got.choices
    assert choice.message.content == expected.text
    assert choice.message.role == "assistant"
    assert choice.finish_reason == ("stop" if stop else "length")
    extra = choice.model_extra
    assert (extra["stop_reason"], extra["dartspec"]["seed"]) == (stop[0] if stop else None, 7)
    if mode != "auto":
        assert extra["dartspec"]["mode"] == mode
    entries = choice.logprobs.content
    assert [entry.logprob for entry in entries] == expected.logprobs
    whole = b"".join(bytes(entry.bytes) for entry in entries)
    assert whole.decode(errors="replace") == TOKENIZER.decode(expected.ids)
    usage, wanted = got.usage, expected.finish.usage
    assert (usage.prompt_tokens, usage.completion_tokens) == (wanted.prompt_tokens, wanted.completion_tokens)
    assert usage.total_tokens == wanted.prompt_tokens + wanted.completion_tokens
    if mode != "auto":  # there, it is a matter of time which tokens are drafted
        details = usage.completion_tokens_details
        assert details.accepted_prediction_tokens == wanted.accepted_tokens
        assert details.rejected_prediction_tokens == wanted.rejected_tokens
        assert (details.accepted_prediction_tokens > 0) == (mode == "dart")


@pytest.mark.parametrize("mode", ["plain", "dart"])
async def test_a_stream_holds_what_the_whole_answer_does(stack: StackMaker, mode: str) -> None:
    wanted: dict[str, Any] = {
        "model": "toy",
        "seed": 3,
        "max_tokens": 30,
        "stop": ["osts"],
        "extra_body": {"mode": mode},
    }
    async with http_stack(stack, [FakeVerifier(scripted_target(SCRIPT))], [FakeNgram()]) as (_, client):
        chat = {**wanted, "messages": MESSAGES, "logprobs": True}
        whole = await client.chat.completions.create(**chat)
        parts = await streamed(
            await client.chat.completions.create(**chat, stream=True, stream_options={"include_usage": True})
        )
        text = {**wanted, "prompt": "hello", "logprobs": 0}
        whole_text = await client.completions.create(**text)
        text_parts = await streamed(await client.completions.create(**text, stream=True))
    first, *middle, last, usage = parts
    assert (first.choices[0].delta.role, first.choices[0].delta.content) == ("assistant", "")
    choice = whole.choices[0]
    assert "".join(part.choices[0].delta.content for part in middle) == choice.message.content
    assert [part.choices[0].finish_reason for part in [first, *middle]] == [None] * (len(middle) + 1)
    assert last.choices[0].finish_reason == choice.finish_reason == "stop"
    assert last.choices[0].model_extra == choice.model_extra
    shown = [entry for part in middle for entry in part.choices[0].logprobs.content]
    assert shown == choice.logprobs.content
    assert (usage.choices, usage.usage) == ([], whole.usage)
    assert all(part.usage is None for part in [first, *middle, last])
    assert len({part.id for part in parts}) == 1
    choice = whole_text.choices[0]
    assert "".join(part.choices[0].text for part in text_parts) == choice.text
    assert text_parts[-1].choices[0].finish_reason == choice.finish_reason
    for name in ("tokens", "token_logprobs", "text_offset"):
        shown = [value for part in text_parts[:-1] for value in getattr(part.choices[0].logprobs, name)]
        assert shown == getattr(choice.logprobs, name)


async def test_text_completions_and_their_offsets(stack: StackMaker) -> None:
    async with http_stack(stack, [FakeVerifier(scripted_target([*SCRIPT, EOS]), eos=[EOS])]) as (s, client):
        expected = await s.generate(text="hello", sampling={"max_tokens": 100})
        got = await client.completions.create(model="toy", prompt="hello", temperature=0, max_tokens=100, logprobs=0)
        (choice,) = got.choices
        assert choice.text == expected.text == TOKENIZER.decode(SCRIPT)
        assert choice.finish_reason == "stop"
        shown = choice.logprobs
        assert shown.token_logprobs == expected.logprobs
        assert len(shown.tokens) == got.usage.completion_tokens == len(SCRIPT) + 1
        assert shown.tokens[-1] == "<eos>"
        before = [TOKENIZER.decode(SCRIPT[:index]).removesuffix("\ufffd") for index in range(len(SCRIPT) + 1)]
        assert shown.text_offset == [len(text) for text in before]
        short = await client.completions.create(model="toy", prompt=[1, 2, 3])
        assert short.usage.completion_tokens == 16  # that API's default
        assert short.usage.prompt_tokens == 3
        assert short.choices[0].logprobs is None


@pytest.mark.parametrize("mode", ["plain", "dart"])
async def test_the_likeliest_tokens_are_those_over_grpc(stack: StackMaker, mode: str) -> None:
    async with http_stack(stack, [FakeVerifier(scripted_target(SCRIPT))], [FakeNgram()]) as (s, client):
        sampling = {"temperature": 0.0, "max_tokens": 20, "top_logprobs": 3}
        expected = await s.generate(text="hello", mode=f"MODE_{mode.upper()}", sampling=sampling)
        body: Any = {"model": "toy", "temperature": 0, "max_tokens": 20, "extra_body": {"mode": mode}}
        chat = await client.chat.completions.create(**body, messages=MESSAGES, logprobs=True, top_logprobs=3)
        text = await client.completions.create(**body, prompt="hello", logprobs=3)
        parts = await streamed(await client.completions.create(**body, prompt="hello", logprobs=3, stream=True))
        chat_grpc = await over_grpc(s, mode, sampling=sampling)
    assert [
        [(bytes(entry.bytes), entry.logprob) for entry in token.top_logprobs]
        for token in chat.choices[0].logprobs.content
    ] == [[(own_bytes(token), logprob) for token, logprob in top] for top in chat_grpc.top_logprobs]
    shown = text.choices[0].logprobs.top_logprobs
    assert len(shown) == len(expected.ids) == 20
    for entries, token, logprob, top in zip(shown, expected.ids, expected.logprobs, expected.top_logprobs, strict=True):
        wanted: dict[str, float] = {}
        for token_id, value in [(token, logprob), *top]:
            wanted.setdefault(own_bytes(token_id).decode(errors="replace"), value)
        assert entries == wanted
    assert [entries for part in parts[:-1] for entries in part.choices[0].logprobs.top_logprobs] == shown


def own_bytes(token_id: int) -> bytes:
    """What a token stands for, by the published table of byte-level vocabularies."""
    table = {character: byte for byte, character in enumerate(byte_characters())}
    token = TOKENIZER.id_to_token(token_id)
    return token.encode() if token.startswith("<") and len(token) > 1 else bytes(table[c] for c in token)


def byte_characters() -> list[str]:
    """What such vocabularies write for each byte."""
    kept = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(byte) if byte in kept else chr(next(others)) for byte in range(256)]


async def test_several_prompts_and_choices_are_each_the_answer_to_their_seed(stack: StackMaker) -> None:
    verifier = FakeVerifier()
    async with http_stack(stack, [verifier], [FakeNgram()]) as (s, client):
        wanted: dict[str, Any] = {"model": "toy", "prompt": ["hello", "ab"], "n": 3, "seed": 11, "max_tokens": 12}
        got = await client.completions.create(**wanted)
        parts = await streamed(await client.completions.create(**wanted, stream=True))
        assert [choice.index for choice in got.choices] == list(range(6))
        for choice in got.choices:
            prompt, seed = wanted["prompt"][choice.index // 3], choice_seed(11, choice.index % 3)
            expected = await s.generate(text=prompt, seed=seed, sampling={"max_tokens": 12})
            assert expected.ids == plain_answer(verifier.target, TOKENIZER.encode(prompt).ids, 12, seed=seed)
            assert choice.text == expected.text
            assert choice.model_extra["dartspec"]["seed"] == seed
            own = [part.choices[0].text for part in parts if part.choices[0].index == choice.index]
            assert "".join(own) == choice.text
        assert got.usage.completion_tokens == 6 * 12
        assert got.usage.prompt_tokens == sum(len(TOKENIZER.encode(prompt).ids) for prompt in wanted["prompt"])


async def test_choices_run_at_once(stack: StackMaker) -> None:
    verifier = FakeVerifier()
    verifier.hang_after_events = 0
    async with http_stack(stack, [verifier]) as (_, client):
        asking = asyncio.create_task(client.chat.completions.create(model="toy", messages=MESSAGES, n=8))
        await until(lambda: len(verifier.opens) == 8)
        assert len({opened.seed for opened in verifier.opens}) == 8
        assert len({opened.request_id for opened in verifier.opens}) == 8
        asking.cancel()
        await until(lambda: not verifier.sessions)


def test_seeds_of_choices_are_splitmix64() -> None:
    # First outputs for the states 0 and 1234567, as rosettacode.org/wiki/Pseudo-random_numbers/Splitmix64 has them.
    zero = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    other = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431, 16408922859458223821]
    assert [choice_seed(0, index) for index in range(4)] == [0, *(output >> 11 for output in zero)]
    assert [choice_seed(1234567, index) for index in range(6)] == [1234567, *(output >> 11 for output in other)]
    assert choice_seed(2**64 - 1, 0) == 2**64 - 1
    assert 0 <= choice_seed(2**64 - 1, 1) < 2**53


async def test_every_parameter_reaches_the_verifier(stack: StackMaker) -> None:
    verifier = FakeVerifier()
    async with http_stack(stack, [verifier]) as (_, client):
        got = await client.chat.completions.with_raw_response.create(
            model="toy",
            messages=MESSAGES,
            temperature=0.5,
            top_p=0.9,
            presence_penalty=0.25,
            frequency_penalty=-0.5,
            max_tokens=5,
            logit_bias={"17": -100, "18": 1.5},  # type: ignore[dict-item]
            seed=-1,
            user="somebody",
            tools=[],
            response_format={"type": "text"},
            extra_body={
                "top_k": 40,
                "min_p": 0.125,
                "repetition_penalty": 1.5,
                "min_tokens": 2,
                "ignore_eos": True,
                "stop_token_ids": [9],
                "mode": "plain",
                "request_id": "mine",
            },
        )
        (opened,) = verifier.opens
        assert opened.sampling == common_pb2.Sampling(
            temperature=0.5,
            top_k=40,
            top_p=0.9,
            min_p=0.125,
            repetition_penalty=1.5,
            presence_penalty=0.25,
            frequency_penalty=-0.5,
            logit_bias={17: -100.0, 18: 1.5},
            min_tokens=2,
            max_tokens=5,
            stop_token_ids=[9],
            ignore_eos=True,
        )
        assert (opened.seed, opened.request_id, opened.plain_only) == (2**64 - 1, "mine", True)
        assert got.headers["x-request-id"] == "mine"
        assert got.parse().id == "chatcmpl-mine"


async def test_conversations_reach_the_template(stack: StackMaker) -> None:
    verifier = FakeVerifier()
    async with http_stack(stack, [verifier]) as (_, client):
        first = await client.chat.completions.create(model="toy", messages=MESSAGES, max_tokens=1)
        history: Any = [
            {"role": "system", "content": "be kind"},
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            first.choices[0].message.model_dump() | {"content": "ok"},
        ]
        await client.chat.completions.create(
            model="toy",
            messages=history,
            max_tokens=1,
            extra_body={"chat_template_kwargs": {"enable_thinking": False}},
        )
    prompt = TOKENIZER.decode(list(verifier.opens[-1].token_ids))
    assert prompt == "<|system|>be kind\n<|user|>ab\n<|assistant|>ok\n<|assistant|>(no thinking)"


async def test_defaults_are_the_models_and_the_seed_is_told(stack: StackMaker) -> None:
    verifier = FakeVerifier(default_sampling=common_pb2.Sampling(temperature=0.6, top_k=20))
    async with http_stack(stack, [verifier], default_max_tokens=7) as (_, client):
        first = await client.chat.completions.create(model="toy", messages=MESSAGES)
        sampling = verifier.opens[-1].sampling
        assert (sampling.temperature, sampling.top_k, sampling.max_tokens) == (0.6, 20, 7)
        seed = first.choices[0].model_extra["dartspec"]["seed"]
        again = await client.chat.completions.create(model="toy", messages=MESSAGES, seed=seed)
        other = await client.chat.completions.create(model="toy", messages=MESSAGES)
        assert again.choices[0].message == first.choices[0].message
        assert other.choices[0].message != first.choices[0].message
        assert again.system_fingerprint == first.system_fingerprint


async def test_models_are_listed(stack: StackMaker) -> None:
    two = [FakeVerifier(model="b/two", weights="2", context_length=100), FakeVerifier(model="one", weights="1")]
    async with http_stack(stack, two) as (_, client):
        listed = (await client.models.list()).data
        assert [(model.id, model.model_extra["max_model_len"]) for model in listed] == [("b/two", 100), ("one", 4096)]
        assert (await client.models.retrieve("b/two")).id == "b/two"
        answer = await client.chat.completions.create(model="b/two", messages=MESSAGES, max_tokens=1)
        assert answer.model == "b/two"
        assert len(two[0].opens) == 1
