"""`dartspec draft train` on a tiny model in a directory: from a shard to a head, and wrong use before any work."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result
from safetensors.torch import load_file

from dartspec.services.common.errors import InvalidArgument
from dartspec.services.draft.checkpoint import load_head
from dartspec.services.draft.target_info import TargetInfo
from dartspec.services.draft.train import loop
from dartspec.services.draft.train.command import train

from .tiny_given import tiny_head
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
    sizes = ["--steps", "4", "--warmup", "1", "--prefixes", "16", "--teacher-tokens", "5"]
    vocabulary = [] if "--head" in arguments else ["--draft-vocab", "30"]  # a given head has its own
    return CliRunner().invoke(train, [*common, *sizes, *vocabulary, "--device", "cpu", *arguments])


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
        (["--teacher", "live", "--train", "transition"], "no transition score to train; give --transition-rank"),
    ],
)
def test_wrong_use_is_named(work: Path, tmp_path: Path, options: list[str], message: str) -> None:
    done = call(work, "--out", str(tmp_path / "head"), *options)
    assert done.exit_code != 0
    assert message in done.output + str(done.exception)
    assert not (tmp_path / "head").exists()


def test_a_score_is_added_to_a_head_and_both_are_trained_on(work: Path, tmp_path: Path) -> None:
    given, score, out = tiny_head(tmp_path / "given", own_output=True), tmp_path / "score", tmp_path / "out"
    common = ["--teacher", "cached", "--cache", str(tmp_path / "cache")]
    alone = [*common, "--train", "transition", "--transition-rank", "3", "--out", str(score), "--head"]
    for _ in range(2):  # the second goes on from the last step of the first
        done = call(work, *alone, str(given))
        assert done.exit_code == 0, done.output + repr(done.exception)
        assert len(json.loads(done.stdout.splitlines()[-1])["hit1"]) == 4  # the given head's depth
    source, added = load_file(given / "model.safetensors"), load_file(score / "model.safetensors")
    assert added.keys() == source.keys() | {"transition.left", "transition.right"}
    assert all(torch.equal(added[name], value) for name, value in source.items())
    assert added["transition.right"].any()

    done = call(work, *common, "--head", str(score), "--out", str(out))
    assert done.exit_code == 0, done.output + repr(done.exception)
    trained = load_file(out / "model.safetensors")
    same = {name for name, value in trained.items() if torch.equal(value, added[name])}
    assert same == {"lm_head.weight", "d2t", "t2d"}
    assert load_head(out, TargetInfo.from_model(tiny_target(), "tiny")).config.transition_rank == 3

    done = call(work, *alone, str(tiny_head(tmp_path / "other", own_output=True, seed=1)))
    assert done.exit_code == 1
    assert "the checkpoint has another head;" in str(done.exception)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--draft-vocab", "8192"], "draft_vocab: the given head decides it"),  # even at the default
        (["--feature-layers", "1,2,3"], "feature_layers: the given head decides it"),
        (["--draft-length", "3"], "draft_length: the given head decides it"),
        (["--attention-window", "16"], "attention_window: the given head decides it"),
        (["--no-shift"], "shift: the given head decides it"),
        (["--init", "random"], "init: the given head decides it"),
        (["--transition-rank", "3"], "transition_rank: the given head's score has rank 4, got 3"),
        (["--transition-rank", "0"], "transition_rank: the given head's score has rank 4, got 0"),
        (["--train", "transition", "--output", "trained"], "train: transition leaves the output matrix"),
        (["--out", "HEAD"], "would be written over it"),
        (["--head", "./nowhere"], "no such directory"),
    ],
)
def test_what_contradicts_a_given_head_is_named(work: Path, tmp_path: Path, options: list[str], message: str) -> None:
    head = tiny_head(tmp_path / "given", rank=4)
    arguments = [str(head) if option == "HEAD" else option for option in options]
    done = call(work, "--teacher", "live", "--head", str(head), "--out", str(tmp_path / "head"), *arguments)
    assert done.exit_code != 0
    assert message in str(done.exception)
    assert not (tmp_path / "head").exists()


def test_a_variable_contradicts_a_given_head_like_a_flag(
    work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DARTSPEC_TRAIN_DRAFT_LENGTH", "5")
    head = tiny_head(tmp_path / "given")
    done = call(work, "--teacher", "live", "--head", str(head), "--out", str(tmp_path / "head"))
    assert "draft_length: the given head decides it" in str(done.exception)


def test_tensorboard_is_asked_for_only_where_it_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(InvalidArgument, match=r"pip install 'dartspec\[train\]'"):
        loop.tensorboard_writer(tmp_path)
