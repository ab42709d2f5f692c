"""The synthetic verifier: its parts by their mathematics, and whole answers through a real gateway."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from bench.gateway_client import Client
from bench.synthetic_verifier.__main__ import replica
from bench.synthetic_verifier.engine import Behaviour
from bench.synthetic_verifier.model import (
    LETTERS,
    TOKENIZER,
    Acceptance,
    Cost,
    answer_to,
    draft_is_right,
    expected_accepted,
    prompt_key,
)
from dartspec.gateway.config import Settings
from dartspec.gateway.serve import running
from dartspec.v1 import gateway_pb2
from tests.fakes import FakeNgram, serving

QUICK = Cost.parse("1:1,64:2,256:8")


def test_cost_is_linear_between_its_points_and_beyond() -> None:
    cost = Cost.parse("1:10,5:18,9:18")
    assert [cost.pass_ms(rows) for rows in (1, 3, 5, 7, 9, 100)] == [10, 14, 18, 18, 18, 18]
    assert Cost.parse("1:10,5:18").pass_ms(9) == 26
    for wrong in ("1", "5:1,1:2", "1:0", "a:b"):
        with pytest.raises(ValueError, match="must"):
            Cost.parse(wrong)


@pytest.mark.parametrize("rate", [0.0, 0.3, 0.8, 1.0])
def test_drafts_are_right_as_often_as_told(rate: float) -> None:
    right = [draft_is_right(prompt_key([seed]), position, rate) for seed in range(40) for position in range(100)]
    assert np.mean(right) == pytest.approx(rate, abs=0.03)


def test_expected_accepted_is_the_geometric_sum() -> None:
    assert expected_accepted(0.5, 3) == 0.5 + 0.25 + 0.125


def test_answers_depend_on_the_prompt_and_can_be_continued() -> None:
    assert answer_to([1, 2], 50) != answer_to([1, 3], 50)
    assert set(answer_to([5], 500)) == set(LETTERS)


def test_acceptance_goes_by_the_first_word_that_the_prompt_holds() -> None:
    acceptance = Acceptance(0.5, {"easy": 0.9, "hard": 0.1})
    assert [acceptance.rate(text) for text in ("so easy", "hard", "?")] == [0.9, 0.1, 0.5]


@pytest.mark.parametrize("mode", ["plain", "dart", "auto"])
@pytest.mark.parametrize("judgement", [True, False])
async def test_answers_through_a_gateway_are_the_models_own(mode: str, judgement: bool) -> None:
    behaviour = Behaviour(QUICK, draft_ms=0.1, acceptance=Acceptance(0.8, {"hard": 0.1}), judgement=judgement)
    async with (
        replica(behaviour, "127.0.0.1:0") as verifier,
        serving(FakeNgram()) as ngram,
        running(Settings(listen=("127.0.0.1:0",), verifier=(verifier,), ngram=(ngram,))) as gateway,
    ):
        client = Client(gateway.addresses[0])
        prompts = ["easy one", "a hard one", "x"]
        taken = await asyncio.gather(*[client.answer(prompt, 90, mode) for prompt in prompts])
        await client.close()
    assert [one.error for one in taken] == ["", "", ""]
    assert [one.tokens for one in taken] == [90, 90, 90]
    for one in taken:
        assert one.ledger is not None
        if mode == "plain":
            assert (one.ledger.dart_rounds, one.ledger.plain_steps) == (0, 89)
        elif mode == "dart":
            assert one.ledger.mode == gateway_pb2.MODE_DART
    if mode == "dart":
        easy, hard = (one.ledger.accepted / one.ledger.dart_rounds for one in taken[:2] if one.ledger)
        assert easy > 2 * hard


async def test_a_replica_that_is_full_refuses_and_a_prompt_is_read_first() -> None:
    behaviour = Behaviour(QUICK, prompt_row_ms=0.1, max_sessions=1)
    async with (
        replica(behaviour, "127.0.0.1:0") as verifier,
        running(Settings(listen=("127.0.0.1:0",), verifier=(verifier,), queue_seconds=0.0)) as gateway,
    ):
        client = Client(gateway.addresses[0])
        first = asyncio.create_task(client.answer("a" * 50, 500, "plain"))
        await asyncio.sleep(0)
        while not gateway.fleet.links[0].sessions:
            await asyncio.sleep(0.005)
        second = await client.answer("b", 5, "plain")
        assert second.error == "RESOURCE_EXHAUSTED"
        assert (await first).error == ""
        await client.close()


def test_the_tokenizer_makes_text_of_answers() -> None:
    text = TOKENIZER.decode(answer_to([1], 200))
    assert len(text) == 200
    assert text.isascii()
