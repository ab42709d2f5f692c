"""A whole run around a writer that is a function: what it leaves behind, what it refuses, and how it goes on."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import click
import pytest

from dartspec.services.common.config import validate
from dartspec.services.common.errors import DartspecError, InvalidArgument, NotFound
from dartspec.services.draft.texts.run import run
from dartspec.services.draft.texts.settings import GenerateSettings
from dartspec.services.draft.texts.store import part_paths, read_records
from dartspec.services.draft.texts.tokenizer import TextTokenizer
from tests.unit.texts.fake_writer import FakeWriter


class FakeTokenizer(TextTokenizer):
    """Words are tokens, and their lengths the ids."""

    fingerprint = "words"

    def __init__(self) -> None:
        pass

    def text_ids(self, text: str) -> list[int]:
        return [len(word) for word in text.split()]


@pytest.fixture
def settings(tmp_path: Path) -> GenerateSettings:
    prompts = tmp_path / "prompts.jsonl"
    texts = [f"question number {i} of many" for i in range(20)]
    prompts.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in [*texts, texts[3]]))
    return GenerateSettings(
        out=str(tmp_path / "out"),
        prompts=(prompts,),
        own=12,
        temperature=(0.0, 0.7),
        exclude=(excluded(tmp_path),),
        shard=8,
    )


def excluded(directory: Path) -> Path:
    path = directory / "evaluation.jsonl"
    path.write_text(json.dumps({"turns": ["Question number 7 of many!", "own question 2 of ten"]}) + "\n")
    return path


def texts_of(directory: Path) -> list[dict[str, Any]]:
    return [record for path in part_paths(directory) for record in read_records(path)]


def contents(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def test_a_run_writes_all_prompts_at_all_temperatures_and_says_what_it_dropped(settings: GenerateSettings) -> None:
    result = run(settings, FakeWriter().open, FakeTokenizer)
    out = Path(settings.out)
    own = {record["text"] for record in texts_of(out / "own") if "text" in record}
    assert len(own) > 2
    assert "own question 2 of ten" in own  # so that one of them is a leak
    assert result["prompts"] == {
        "used": 19 + len(own) - 1,
        "own": len(own),
        "duplicates": 1,
        "leaks": {"equal": 2, "contains": 0, "shares": 0},
    }
    texts = texts_of(out)
    assert [text["i"] for text in texts] == list(range(2 * (19 + len(own) - 1)))
    assert sorted({text["t"] for text in texts}) == [0.0, 0.7]
    assert result["texts"] == len(texts)
    assert result["tokens"] == sum(len(text["o"]) for text in texts)
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["result"] == result
    assert manifest["target"] == {
        "name": "fake",
        "fingerprint": "ffffffff",
        "tokenizer_fingerprint": "tttttttt",
        "dtype": "float32",
    }
    assert "date" not in manifest


@pytest.mark.parametrize("fails_after", [5, 30])
def test_a_run_that_was_interrupted_goes_on_to_the_same_files(
    settings: GenerateSettings, tmp_path: Path, fails_after: int
) -> None:
    whole = dataclasses.replace(settings, out=str(tmp_path / "whole"))
    undisturbed = FakeWriter()
    run(whole, undisturbed.open, FakeTokenizer)
    first, second = FakeWriter(fails_after=fails_after), FakeWriter()
    with pytest.raises(KeyboardInterrupt):
        run(settings, first.open, FakeTokenizer)
    assert json.loads((Path(settings.out) / "manifest.json").read_text())["result"] is None
    run(settings, second.open, FakeTokenizer)
    assert first.written + second.written == undisturbed.written
    assert contents(Path(settings.out)) == contents(tmp_path / "whole")
    third = FakeWriter()
    run(settings, third.open, FakeTokenizer)
    assert third.opened == 0  # complete: nothing is loaded
    assert contents(Path(settings.out)) == contents(tmp_path / "whole")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": 5}, "seed was 0, now it is 5"),
        ({"temperature": (0.7,)}, r"temperatures was \[0.0, 0.7\], now it is \[0.7\]"),
        ({"max_new": 100}, "max_new was 224, now it is 100"),
    ],
)
def test_texts_of_different_runs_are_not_mixed(
    settings: GenerateSettings, change: dict[str, Any], message: str
) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(settings, FakeWriter(fails_after=20).open, FakeTokenizer)
    with pytest.raises(InvalidArgument, match=message):
        run(dataclasses.replace(settings, **change), FakeWriter().open, FakeTokenizer)
    other = FakeWriter()
    other.target = dataclasses.replace(other.target, fingerprint="another")
    with pytest.raises(InvalidArgument, match=r"target was .*ffffffff.*another"):
        run(settings, other.open, FakeTokenizer)
    run(dataclasses.replace(settings, date="2026-11-30"), FakeWriter().open, FakeTokenizer)
    assert json.loads((Path(settings.out) / "manifest.json").read_text())["date"] == "2026-11-30"


def test_foreign_text_becomes_texts_with_a_prompt_of_one_token(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(
        json.dumps({"text": "a bb ccc dddd a bb ccc dddd a bb ccc"})
        + "\n"
        + json.dumps({"text": "Question number 7 of many"})
    )
    (tmp_path / "b.txt").write_text("one three\nfour seven ")
    settings = GenerateSettings(
        out=str(tmp_path / "out"),
        foreign=(tmp_path / "a.jsonl", tmp_path / "b.txt"),
        exclude=(excluded(tmp_path),),
        capacity=8,
        max_new=4,
    )
    writer = FakeWriter()
    result = run(settings, writer.open, FakeTokenizer)
    assert writer.opened == 0
    assert [(text["p"], text["o"], text["t"]) for text in texts_of(tmp_path / "out")] == [
        ([1], [2, 3, 4, 1, 2, 3, 4], 1.0),
        ([1], [2, 3], 1.0),
        ([3], [5, 4, 5], 1.0),
    ]
    assert result["documents"] == {"leaks": {"equal": 1, "contains": 0, "shares": 0}}
    assert result["texts"] == 3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"out": ""}, "--out: is missing"),
        ({"prompts": (), "own": 0}, "--prompts: is missing; give --prompts FILE, --own N"),
        ({"plain": True}, "--own: writes users' messages of a chat"),
        ({"max_new": 511}, "--max-new: 511 leaves no room for a prompt in --capacity 511"),
        ({"template_arg": ("thinking",)}, "--template-arg: must be KEY=VALUE, got 'thinking'"),
        ({"foreign": (Path(__file__),)}, "--foreign: is a run of its own"),
        ({"exclude": (Path(__file__).parent,)}, "--exclude: .* holds no file that ends in .jsonl"),
    ],
)
def test_contradictions_are_refused_before_anything_is_opened(
    settings: GenerateSettings, change: dict[str, Any], message: str
) -> None:
    writer = FakeWriter()
    with pytest.raises(DartspecError, match=message):
        run(dataclasses.replace(settings, **change), writer.open, FakeTokenizer)
    assert writer.opened == 0
    assert not Path(settings.out).exists()


def test_files_that_cannot_be_used_are_refused_by_name(settings: GenerateSettings, tmp_path: Path) -> None:
    opened = FakeWriter()
    empty = tmp_path / "empty.jsonl"
    empty.touch()
    with pytest.raises(InvalidArgument, match=r"empty\.jsonl holds no prompt"):
        run(dataclasses.replace(settings, prompts=(empty,)), opened.open, FakeTokenizer)
    only = tmp_path / "only.jsonl"
    only.write_text(json.dumps({"prompt": "question number 7 of many"}) + "\n")
    with pytest.raises(InvalidArgument, match="every prompt holds one of --exclude: 1 equal"):
        run(dataclasses.replace(settings, prompts=(only,), own=0), opened.open, FakeTokenizer)
    binary = tmp_path / "binary.jsonl"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(NotFound, match=r"binary\.jsonl: cannot be read"):
        run(dataclasses.replace(settings, prompts=(binary,)), opened.open, FakeTokenizer)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").touch()
    with pytest.raises(InvalidArgument, match=r"mine holds files but no manifest\.json"):
        run(dataclasses.replace(settings, out=str(tmp_path / "mine")), opened.open, FakeTokenizer)
    with pytest.raises(InvalidArgument, match="is a file; name a directory"):
        run(dataclasses.replace(settings, out=str(only)), opened.open, FakeTokenizer)
    assert opened.opened == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"temperature": (0.5, -1.0)}, "must be between 0 and 100, got -1"),
        ({"temperature": (float("nan"),)}, "got nan"),
        ({"temperature": (0.0, 0.0)}, "0 twice"),
        ({"prompts": (Path("absent.jsonl"),)}, "absent.jsonl does not exist"),
        ({"rows": 257}, "got 257"),
        ({"memory": "much"}, "got 'much'"),
        ({"gateway": "somewhere"}, "got 'somewhere'"),
    ],
)
def test_wrong_values_are_refused_by_name(change: dict[str, Any], message: str) -> None:
    with pytest.raises(click.BadParameter, match=message) as raised:
        validate(GenerateSettings(**change))
    assert raised.value.param_hint is not None
    assert f"'--{next(iter(change))}'" == raised.value.param_hint
