"""Where an answer ends: every offset of a stop string, a stop token, max_tokens and two of them in one span."""

from __future__ import annotations

import pytest

from dartspec.v1 import common_pb2, gateway_pb2
from tests.fakes import FakeNgram, FakeVerifier, byte_tokenizer, logprob, scripted_target, top_tokens
from tests.unit.gateway.conftest import Reply, StackMaker

STOP, LENGTH = common_pb2.FINISH_REASON_STOP, common_pb2.FINISH_REASON_LENGTH
PLAIN, DART = gateway_pb2.MODE_PLAIN, gateway_pb2.MODE_DART
TOKENIZER = byte_tokenizer()
EOS = TOKENIZER.token_to_id("<eos>")
# No three tokens occur twice; € and ö take several tokens.
SCRIPT = TOKENIZER.encode("cdfg€ijkmnöpqrstuvxyz0123456789").ids


def expected_end(stop: str, max_tokens: int) -> tuple[list[int], str, int]:
    """(ids, text, reason) of the scripted answer, token by token."""
    for end in range(1, max_tokens + 1):
        text = TOKENIZER.decode(SCRIPT[:end])
        if stop and stop in text:
            return SCRIPT[:end], text[: text.index(stop)], STOP
    return SCRIPT[:max_tokens], TOKENIZER.decode(SCRIPT[:max_tokens]), LENGTH


def got(reply: Reply) -> tuple[list[int], str, int]:
    """What was delivered; what is told of the tokens is told of these and no others, and so is the usage."""
    begun = reply.finish.usage.completion_tokens - len(reply.ids)
    tokens = [1, 2, 3, *SCRIPT[:begun], *reply.ids]
    told = range(3 + begun, len(tokens))
    assert reply.logprobs == [logprob(tokens, position) for position in told]
    width = reply.start.sampling.top_logprobs
    assert reply.top_logprobs == [top_tokens(tokens, position, width) for position in told if width]
    assert reply.finish.usage.prompt_tokens == 3
    assert reply.finish.usage.accepted_tokens <= len(reply.ids)
    return reply.ids, reply.text, reply.finish.reason


@pytest.mark.parametrize("mode", [PLAIN, DART])
async def test_stop_string_at_every_offset(stack: StackMaker, mode: int) -> None:
    verifier = FakeVerifier(scripted_target(SCRIPT))
    text = TOKENIZER.decode(SCRIPT)
    async with stack([verifier], [FakeNgram()]) as s:
        for at in range(len(text) - 2):
            for length in (1, 3):
                stop = text[at : at + length]
                sampling = {"max_tokens": len(SCRIPT), "top_logprobs": 2}
                reply = await s.generate(mode=mode, stop=["never", stop], sampling=sampling)
                assert got(reply) == expected_end(stop, len(SCRIPT))
                assert reply.finish.stop == stop
        assert s.gateway.generation.open_requests == 0
    assert verifier.sessions == {}


@pytest.mark.parametrize("mode", [PLAIN, DART])
async def test_max_tokens_at_every_offset(stack: StackMaker, mode: int) -> None:
    async with stack([FakeVerifier(scripted_target(SCRIPT))], [FakeNgram()]) as s:
        for max_tokens in range(1, len(SCRIPT) + 1):
            reply = await s.generate(mode=mode, sampling={"max_tokens": max_tokens, "top_logprobs": 1})
            assert got(reply) == expected_end("", max_tokens)


async def test_stop_string_and_max_tokens_in_one_span(stack: StackMaker) -> None:
    text = TOKENIZER.decode(SCRIPT)
    async with stack([FakeVerifier(scripted_target(SCRIPT))], [FakeNgram()]) as s:
        for max_tokens in range(10, 18):
            for at in range(max_tokens - 9, max_tokens + 1):
                stop = text[at : at + 2]
                sampling = {"max_tokens": max_tokens, "top_logprobs": 3}
                reply = await s.generate(mode=DART, stop=[stop], sampling=sampling)
                assert got(reply) == expected_end(stop, max_tokens)


@pytest.mark.parametrize("mode", [PLAIN, DART])
async def test_eos_at_every_offset_is_delivered_and_last(stack: StackMaker, mode: int) -> None:
    verifier = FakeVerifier(eos=[EOS])
    async with stack([verifier], [FakeNgram()]) as s:
        for at in range(12):
            script = [*SCRIPT[:at], EOS, *SCRIPT[at:]]
            verifier.target = scripted_target(script)
            reply = await s.generate(mode=mode, sampling={"max_tokens": 30})
            assert got(reply) == (script[: at + 1], TOKENIZER.decode(SCRIPT[:at]), STOP)
            assert reply.finish.stop == ""
            ignoring = await s.generate(mode=mode, sampling={"max_tokens": 20, "ignore_eos": True})
            assert ignoring.ids == script[:20]


async def test_stop_token_and_stop_string_in_one_span(stack: StackMaker) -> None:
    async with stack([FakeVerifier(scripted_target(SCRIPT))], [FakeNgram()]) as s:
        for at in range(8, 14):
            sampling = {"max_tokens": 30, "stop_token_ids": [SCRIPT[10]]}
            stop = TOKENIZER.decode(SCRIPT[at - 1 : at + 1])
            reply = await s.generate(mode=DART, stop=[stop], sampling=sampling)
            if at <= 10:
                assert got(reply) == expected_end(stop, 30)
            else:
                assert got(reply) == (SCRIPT[:11], TOKENIZER.decode(SCRIPT[:11]), STOP)


@pytest.mark.parametrize("mode", [PLAIN, DART])
async def test_the_context_limit_at_every_offset(stack: StackMaker, mode: int) -> None:
    for room in range(1, 19):
        verifier = FakeVerifier(scripted_target(SCRIPT), context_length=3 + room)  # a prompt of 3
        async with stack([verifier], [FakeNgram()]) as s:
            reply = await s.generate(mode=mode, sampling={"max_tokens": 1000, "top_logprobs": 2})
            assert got(reply) == expected_end("", room)
        assert verifier.sessions == {}


async def test_max_tokens_a_stop_and_the_context_limit_in_one_span(stack: StackMaker) -> None:
    text = TOKENIZER.decode(SCRIPT)
    for room in range(10, 15):
        async with stack([FakeVerifier(scripted_target(SCRIPT), context_length=3 + room)], [FakeNgram()]) as s:
            for max_tokens in range(10, 15):
                for at in (8, 10, 12):
                    sampling = {"max_tokens": max_tokens, "top_logprobs": 2}
                    reply = await s.generate(mode=DART, stop=[text[at : at + 2]], sampling=sampling)
                    assert got(reply) == expected_end(text[at : at + 2], min(max_tokens, room))


@pytest.mark.parametrize("mode", [PLAIN, DART])
async def test_an_answer_resumes_at_every_token(stack: StackMaker, mode: int) -> None:
    stop = "3456"
    ids, text, _ = expected_end(stop, len(SCRIPT))
    verifier = FakeVerifier(scripted_target(SCRIPT))
    async with stack([verifier], [FakeNgram()]) as s:
        sampling = {"max_tokens": 35, "top_logprobs": 4}
        whole = await s.generate(mode=mode, stop=[stop], sampling=sampling)
        assert whole.ids == ids
        for cut in range(len(ids)):
            first = await s.generate(mode=mode, stop=[stop], sampling={"max_tokens": cut}) if cut else None
            # An answer cut by max_tokens lets its held text go; a lost stream would not. Take what was certain.
            certain = "" if first is None else TOKENIZER.decode(ids[:cut]).rstrip("\ufffd")
            held = next((k for k in range(3, 0, -1) if certain.endswith(stop[:k])), 0)
            certain = certain[: len(certain) - held]
            rest = await s.generate(mode=mode, stop=[stop], committed_token_ids=ids[:cut], sampling=sampling)
            assert got(rest)[0] == ids[cut:]
            assert certain + rest.text == text
            assert rest.logprobs == whole.logprobs[cut:]
            assert rest.top_logprobs == whole.top_logprobs[cut:]
            assert rest.finish.usage.completion_tokens == len(ids)
            assert list(verifier.opens[-1].token_ids) == [1, 2, 3, *ids[:cut]]
            assert verifier.opens[-1].prompt_len == 3


async def test_committed_tokens_count_for_max_tokens(stack: StackMaker) -> None:
    async with stack([FakeVerifier(scripted_target(SCRIPT))], [FakeNgram()]) as s:
        reply = await s.generate(mode=DART, committed_token_ids=SCRIPT[:9], sampling={"max_tokens": 11})
        assert reply.ids == SCRIPT[9:11]
        assert reply.finish.reason == LENGTH


async def test_an_answer_that_is_complete_already_opens_nothing(stack: StackMaker) -> None:
    verifier = FakeVerifier(scripted_target(SCRIPT), eos=[EOS])
    async with stack([verifier], [FakeNgram()]) as s:
        by_length = await s.generate(committed_token_ids=SCRIPT[:5], sampling={"max_tokens": 5})
        assert (by_length.ids, by_length.text, by_length.finish.reason) == ([], "\ufffd", LENGTH)  # a part of the €
        by_eos = await s.generate(committed_token_ids=[*SCRIPT[:3], EOS])
        assert (by_eos.ids, by_eos.text, by_eos.finish.reason) == ([], "", STOP)
        by_stop = await s.generate(committed_token_ids=SCRIPT[:3], stop=["df"])
        assert (by_stop.ids, by_stop.finish.reason, by_stop.finish.stop) == ([], STOP, "df")
        assert by_stop.finish.usage.completion_tokens == 3
        held = await s.generate(committed_token_ids=SCRIPT[:3], stop=["fg"], sampling={"max_tokens": 3})
        assert (held.ids, held.text, held.finish.reason) == ([], "f", LENGTH)
    assert verifier.opens == []
