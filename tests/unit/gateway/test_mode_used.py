"""The mode that an answer reports: what was asked for, and what its rounds did."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from dartspec.gateway.answer import Answer
from dartspec.gateway.ledger import Ledger
from dartspec.gateway.types import Finish, FinishReason, Mode


@pytest.mark.parametrize(
    ("asked", "dart_rounds", "plain_steps", "reported"),
    [
        (Mode.DART, 5, 1, Mode.DART),
        (Mode.DART, 5, 0, Mode.DART),
        (Mode.DART, 0, 1, Mode.PLAIN),
        (Mode.DART, 0, 0, Mode.DART),
        (Mode.AUTO, 5, 1, Mode.AUTO),
        (Mode.AUTO, 5, 0, Mode.DART),
        (Mode.AUTO, 0, 4, Mode.PLAIN),
        (Mode.PLAIN, 0, 4, Mode.PLAIN),
    ],
)
async def test_mode_used(asked: Mode, dart_rounds: int, plain_steps: int, reported: Mode) -> None:
    plan = SimpleNamespace(
        mode=asked,
        committed=(1, 2),
        ended=FinishReason.LENGTH,
        ended_stop="",
        start=SimpleNamespace(prompt_token_ids=(7,)),
        stream=SimpleNamespace(push=lambda *_, **__: SimpleNamespace(text="")),
    )
    ledger = Ledger(arrived=0.0)
    ledger.dart_rounds, ledger.plain_steps = dart_rounds, plain_steps
    unused = cast(Any, None)
    answer = Answer(cast(Any, plan), unused, unused, ledger, unused, unused, unused)
    (finish,) = [message async for message in answer.messages()]
    assert isinstance(finish, Finish)
    assert finish.mode_used is reported
