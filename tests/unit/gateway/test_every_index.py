"""A verifier that dies after any number of tokens: the answer is the undisturbed one, without gap or repetition.

`python -m bench.failover` does the same to processes.
"""

from __future__ import annotations

import pytest

from dartspec.v1 import gateway_pb2
from tests.fakes import FakeNgram, FakeVerifier, plain_answer, serving
from tests.unit.gateway.conftest import StackMaker

TOKENS = 64
PROMPT = [1, 2, 3]


@pytest.mark.parametrize("mode", [gateway_pb2.MODE_PLAIN, gateway_pb2.MODE_DART])
async def test_death_before_every_round(stack: StackMaker, mode: int) -> None:
    lost_at = []
    while True:
        one, other = FakeVerifier(), FakeVerifier()
        expected = plain_answer(one.target, PROMPT, TOKENS)
        async with (
            serving(one) as first,
            serving(other) as second,
            stack([first, second], [FakeNgram()], routing="round_robin") as s,
        ):
            dying, lasting = (one, other) if first < second else (other, one)  # the first turn is by address
            dying.die_after_events = len(lost_at)
            reply = await s.generate(mode=mode, sampling={"max_tokens": TOKENS})
        assert reply.ids == expected
        assert reply.text == one.tokenizer.decode(expected)
        assert len(dying.opens) == 1
        if not lasting.opens:  # it came to its end
            break
        lost_at.append(len(lasting.opens[0].token_ids) - len(PROMPT))
    # What was under way when the stream broke may be lost with it.
    assert all(at <= TOKENS for at in lost_at)
    assert lost_at[0] == 0
    assert len({*lost_at}) > (50 if mode == gateway_pb2.MODE_PLAIN else 10)
    if mode == gateway_pb2.MODE_PLAIN:
        assert len(lost_at) == TOKENS
