"""Prompt files, good and bad."""

from __future__ import annotations

import json

import pytest

from dartspec.cli.prompts import Prompt, read_prompts
from dartspec.services.common.errors import InvalidArgument, NotFound


def write(path, *values):
    path.write_text("".join((value if isinstance(value, str) else json.dumps(value)) + "\n" for value in values))
    return path


def test_turns_and_prompt_with_and_without_id(tmp_path):
    file = write(
        tmp_path / "p.jsonl",
        {"id": 81, "turns": ["one", "two"]},
        "",
        {"prompt": "three"},
        {"id": "x", "prompt": "four"},
    )
    assert read_prompts(file) == [Prompt("81", "one"), Prompt("3", "three"), Prompt("x", "four")]


def test_limit_stops_before_a_bad_line(tmp_path):
    file = write(tmp_path / "p.jsonl", {"prompt": "one"}, "not json")
    assert read_prompts(file, 1) == [Prompt("1", "one")]
    with pytest.raises(InvalidArgument, match="line 2: not JSON"):
        read_prompts(file, 2)


@pytest.mark.parametrize("value", [{}, [], "text", 3, {"turns": []}, {"turns": [1]}, {"prompt": ""}, {"prompt": None}])
def test_a_line_without_a_prompt_is_named(tmp_path, value):
    file = write(tmp_path / "p.jsonl", json.dumps(value))
    with pytest.raises(InvalidArgument, match="line 1: has neither"):
        read_prompts(file)


def test_only_newlines_end_a_line(tmp_path):
    texts = ["one\u2028two", "three\u0085four"]
    file = tmp_path / "p.jsonl"
    file.write_bytes("\r\n".join(json.dumps({"prompt": text}, ensure_ascii=False) for text in texts).encode())
    assert [prompt.text for prompt in read_prompts(file)] == texts


def test_missing_empty_and_binary_files(tmp_path):
    with pytest.raises(NotFound, match="cannot be read"):
        read_prompts(tmp_path / "none.jsonl")
    with pytest.raises(InvalidArgument, match="holds no prompt"):
        read_prompts(write(tmp_path / "empty.jsonl", "", ""))
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(NotFound, match="cannot be read"):
        read_prompts(tmp_path / "binary")
