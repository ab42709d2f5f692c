"""`dartspec draft train` on a tiny model in a directory: from a shard to a head, and wrong use before any work."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result

from dartspec.services.common.errors import InvalidArgument
from dartspec.services.draft.checkpoint import load_head
from dartspec.services.draft.target_info import TargetInfo
from dartspec.services.draft.train import loop
from dartspec.services.draft.train.command import train

from .tiny_training import tiny_target, tiny_texts


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("work")
    tiny_target().save_pretrained(directory / "model")
    records = [{"p": text.tokens[:3], "o": text.tokens[3:], "t": 0.0} for text in tiny_texts(90)]
    (directory / "text.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return directory


def call(work: Path, *arguments: str) -> Result:
    common = ["--model", str(work / "model"), "--text", str(work / "text.jsonl"), "--threads", "1"]
    sizes = ["--steps", "4", "--warmup", "1", "--prefixes", "16", "--draft-vocab", "30", "--teacher-tokens", "5"]
    return CliRunner().invoke(train, [*common, *sizes, "--device", "cpu", *arguments])


@pytest.mark.parametrize(
    "options",
    [
        ["--teacher", "cached", "--cache", "CACHE"],
        [
            "--teacher",
            "live",
            "--dtype",
            "bfloat16",
            "--output",
            "trained",
            "--init",
            "random",
            "--transition-rank",
            "3",
        ],
        ["--teacher", "live", "--draft-vocab", "0", "--draft-length", "2", "--accumulate", "2"],
    ],
)
def test_from_a_shard_to_a_head(work: Path, tmp_path: Path, options: list[str]) -> None:
    arguments = [str(tmp_path / "cache") if option == "CACHE" else option for option in options]
    done = call(work, "--out", str(tmp_path / "head"), "--eval-every", "2", *arguments)
    assert done.exit_code == 0, done.output + repr(done.exception)
    last = json.loads(done.stdout.splitlines()[-1])
    depth = 3 if "--draft-length" in options else 8
    assert (last["step"], len(last["hit1"]), len(last["hit10"])) == (4, depth, depth)
    assert 1.0 <= last["chain"] <= last["tree_16"] <= last["tree_59"] <= depth + 1
    head = load_head(tmp_path / "head", TargetInfo.from_model(tiny_target(), "tiny"), dtype=torch.float32)
    assert head.config.draft_vocab_size == (40 if "--draft-vocab" in options else 30)
    assert (head.transition is not None) == ("--transition-rank" in options)
    again = call(work, "--out", str(tmp_path / "head"), "--eval-every", "2", *arguments)
    assert again.exit_code == 0
    assert "going on from step 4" in again.output


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--teacher", "cached"], "needs --cache"),
        (["--teacher", "live", "--warmup", "4"], "must be less than steps"),
        (["--teacher", "live", "--feature-layers", "1,2,6"], "distinct layers from 0 to 5"),
        (["--teacher", "live", "--draft-vocab", "41"], "the target has 40 tokens, got 41"),
        (["--teacher", "live", "--teacher-tokens", "41"], "the target has 40, got 41"),
        (["--teacher", "live", "--max-length", "2"], "must be between 8"),
        (["--teacher", "live", "--feature-layers", "1;2"], "separated by commas"),
    ],
)
def test_wrong_use_is_named(work: Path, tmp_path: Path, options: list[str], message: str) -> None:
    done = call(work, "--out", str(tmp_path / "head"), *options)
    assert done.exit_code != 0
    assert message in done.output + str(done.exception)
    assert not (tmp_path / "head").exists()


def test_tensorboard_is_asked_for_only_where_it_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(InvalidArgument, match=r"pip install 'dartspec\[train\]'"):
        loop.tensorboard_writer(tmp_path)
