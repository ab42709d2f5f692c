"""Runs: the loss falls, an interrupted run is the run that was not, and processes share the work exactly."""

from __future__ import annotations

import dataclasses
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from dartspec.services.common.errors import FailedPrecondition
from dartspec.services.draft.checkpoint import load_head
from dartspec.services.draft.config import HeadConfig
from dartspec.services.draft.target_info import TargetInfo
from dartspec.services.draft.train.initial import initial_head, settings_config
from dartspec.services.draft.train.loop import Run
from dartspec.services.draft.train.teacher import LiveTeacher
from dartspec.services.draft.train.train import Trainer

from .tiny_training import kill_after_first_point, same_bits, tiny_run, tiny_settings, tiny_target, tiny_texts

SCRIPT = Path(__file__).with_name("tiny_training.py")


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Run:
    torch.set_num_threads(1)
    run = tiny_run(tmp_path_factory.mktemp("run") / "head", tiny_settings())
    run.train(progress=False)
    return run


def start(directory: Path, *arguments: str, **environment: str) -> subprocess.Popen[bytes]:
    root = Path(__file__).resolve().parents[3]
    variables = {**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1", **environment}
    return subprocess.Popen([sys.executable, str(SCRIPT), str(directory), *arguments], env=variables, cwd=root)


def test_a_killed_and_resumed_run_is_the_uninterrupted_one_bit_for_bit(uninterrupted: Run, tmp_path: Path) -> None:
    process = start(tmp_path, "6", "1", "stall")
    kill_after_first_point(process, tmp_path / "curve.jsonl")
    with (tmp_path / "curve.jsonl").open("a") as curve:
        curve.write('{"step": 3, "note": "written after the checkpoint"}\n')
    resumed = tiny_run(tmp_path, tiny_settings())
    assert resumed.resume()
    assert resumed.trainer.step == 2
    resumed.train(progress=False)
    same_bits(resumed, uninterrupted)
    assert [json.loads(line)["step"] for line in (tmp_path / "curve.jsonl").read_text().splitlines()] == [2, 4, 6]


def test_the_last_two_checkpoints_are_kept_and_a_damaged_one_is_passed_over(uninterrupted: Run) -> None:
    names = [path.name for path in sorted((uninterrupted.output / "checkpoints").iterdir())]
    assert names == ["step-000000004.pt", "step-000000006.pt"]
    last = uninterrupted.output / "checkpoints" / names[1]
    whole = last.read_bytes()
    last.write_bytes(whole[: len(whole) // 2])
    (uninterrupted.output / "checkpoints" / ".step-000000007.1").write_bytes(b"torn")
    again = tiny_run(uninterrupted.output, tiny_settings())
    assert again.resume()
    assert again.trainer.step == 4
    again.train(progress=False)
    same_bits(again, uninterrupted)


def test_changed_settings_or_texts_are_refused_unless_wanted(uninterrupted: Run) -> None:
    other = tiny_run(uninterrupted.output, tiny_settings(gamma=0.7))
    with pytest.raises(FailedPrecondition, match="another gamma; give the same, --resume changed"):
        other.resume()
    texts = tiny_run(uninterrupted.output, tiny_settings(steps=8), tiny_texts(5))
    with pytest.raises(FailedPrecondition, match="another steps, text"):
        texts.resume()
    assert texts.resume(allow_changes=True)
    assert texts.trainer.step == 6
    texts.train(progress=False)
    assert texts.curve[-1]["step"] == 8


def test_two_processes_do_what_one_does_with_twice_the_passes(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    other = start(tmp_path / "two", "4", "1", RANK="1", WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    try:
        torch.distributed.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=0, world_size=2)
        tiny_run(tmp_path / "two", tiny_settings(4)).train(progress=False)
        assert other.wait(300) == 0
    finally:
        other.kill()
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
    alone = tiny_run(tmp_path / "one", tiny_settings(4, accumulate=2))
    alone.train(progress=False)
    ours, theirs = alone.checkpoints.latest(), torch.load(tmp_path / "two/checkpoints/step-000000004.pt")
    assert ours is not None
    assert ours["trainer"]["prefixes_seen"] == theirs["trainer"]["prefixes_seen"] == 4 * 2 * 24
    for name, weight in ours["trainer"]["weights"].items():
        torch.testing.assert_close(theirs["trainer"]["weights"][name], weight, rtol=1e-4, atol=1e-5)


def test_training_an_output_matrix_leaves_the_targets_alone(tmp_path: Path) -> None:
    model = tiny_target()
    target, settings = TargetInfo.from_model(model, "tiny"), tiny_settings(output="trained", draft_vocab=0)
    before = target.lm_head.clone()
    head = initial_head(model, target, settings_config(model, target, settings, 40), torch.arange(40))
    trainer = Trainer(head, LiveTeacher(model, tiny_texts(), target.feature_layers, 5), settings)
    trainer.train_step()
    assert torch.equal(target.lm_head, before)
    assert not torch.equal(trainer.head.lm_head.weight, before)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"output": "trained", "transition_rank": 4},
        {"feature_layers": "0,2,3,5"},
        {"shift": False},
    ],
)
def test_training_lowers_the_loss_and_leaves_a_head_to_load(changes: dict[str, object], tmp_path: Path) -> None:
    settings = tiny_settings(24, **changes)
    run = tiny_run(tmp_path, settings, eval_every=100)
    losses = [run.trainer.train_step() for _ in range(24)]
    assert np.mean(losses[-5:]) < 0.75 * np.mean(losses[:5])
    run._save(run._measure())
    target = TargetInfo.from_model(tiny_target(), "tiny")
    loaded = load_head(tmp_path, target, dtype=torch.float32)
    assert loaded.lm_head_is_target == (settings.output == "frozen")
    assert dataclasses.asdict(loaded.config) == dataclasses.asdict(HeadConfig.from_file(tmp_path / "config.json"))
    for name, parameter in run.trainer.trained.items():
        torch.testing.assert_close(loaded.get_parameter(name), parameter.detach().bfloat16().float())
