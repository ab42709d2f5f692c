"""SmolLM2-135M in float32 through real processes: DART's tokens are plain decoding's."""

from __future__ import annotations

import pytest

from bench.identity import FLOAT32_TOLERANCE, run
from dartspec.cli.prompts import Prompt
from dartspec.cli.stack_settings import StackSettings

PROMPTS = [
    Prompt("list", "Name five kinds of trees and say in one sentence where each of them grows."),
    Prompt("sum", "Tom has 3 boxes of 12 pencils and gives away 7 pencils. How many pencils are left?"),
    Prompt("code", "Write a Python function that returns the largest even number of a list."),
]


@pytest.mark.smollm2
async def test_tokens_are_those_of_plain_decoding() -> None:
    result = await run(StackSettings(dtype="float32"), PROMPTS, (0.0, 0.7, 1.3), max_tokens=24, seed=1)
    assert result.answers == 9
    assert result.holds(FLOAT32_TOLERANCE), result.parts
    # The rounds committed more than plain decoding would have: the trees were real.
    assert result.committed > 1.1 * result.dart_rounds > 0
