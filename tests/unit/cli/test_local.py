"""Commands that bring a stack of their own, with fake services under the real stack."""

from __future__ import annotations

import json

from tests.unit.cli.command import dartspec

FAKE = "tests.unit.cli.fake_stack"


async def test_generate_local_answers_and_names_the_target():
    result = await dartspec("generate", "hello", "--local", "--head", "none", "--index", "none", "--json", module=FAKE)
    assert result.code == 0, result.err
    assert result.out.startswith("5 6 7 8 9 \n")
    assert json.loads(result.out.splitlines()[-1])["dtype"] == "float32"
    assert "fake (llama), float32 on cpu" in result.err
    assert "gateway stopped" not in result.err  # logs of ready services are not the reader's concern


async def test_generate_local_passes_a_failure_on():
    result = await dartspec("generate", "hello", "--local", "--index", "none", module=FAKE, FAKE_VERIFIER="refuse")
    assert result.code == 2
    assert result.err.splitlines()[-1].endswith("while starting: model: no directory /nowhere")
    assert result.out == ""


async def test_demo_shows_three_answers_both_speeds_and_the_float32_check(tmp_path):
    result = await dartspec("demo", module=FAKE, XDG_CACHE_HOME=str(tmp_path))
    assert result.code == 0, result.err
    lines = result.out.splitlines()
    assert lines[0].startswith(("dtype float32: ", "dtype bfloat16: "))
    for number in (1, 2, 3):
        assert any(line.startswith(f"[{number}/3] ") for line in lines)
    assert sum(line.startswith("  plain  5 tokens") for line in lines) == 3
    assert sum(line.startswith("  DART   5 tokens") for line in lines) == 3
    assert sum(line == "  identical: yes" for line in lines) == 3
    assert "M 2.50 tokens committed, A 1.50 accepted a round; 6 rounds, 0 plain steps" in lines
    assert lines[-1] == "float32 check: identical: yes"
