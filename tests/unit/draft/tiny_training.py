"""A tiny target with texts, and a run over them in a process of its own.

    python tiny_training.py DIRECTORY STEPS ACCUMULATE [stall]

trains to DIRECTORY; with `stall` it stops moving after the first checkpoint, in the middle of the next step.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from dartspec.services.draft.target_info import TargetInfo
from dartspec.services.draft.train.data import Text
from dartspec.services.draft.train.initial import chosen_layers, initial_head, settings_config
from dartspec.services.draft.train.loop import Run
from dartspec.services.draft.train.settings import TrainSettings
from dartspec.services.draft.train.teacher import LiveTeacher
from dartspec.services.draft.train.train import Trainer


def kill_after_first_point(process: subprocess.Popen[bytes], curve: Path) -> None:
    """End a training process without warning as soon as its curve has a point, hence its run a checkpoint."""
    try:
        until = time.monotonic() + 300
        while not curve.exists() or not curve.read_text():
            assert process.poll() is None
            assert time.monotonic() < until
            time.sleep(0.05)
    finally:
        process.kill()
        process.wait()


def same_bits(left: Run, right: Run) -> None:
    """Assert that two runs have equal weights, optimisers, places in the stream and curves."""
    ours, theirs = left.trainer.state(), right.trainer.state()
    for name, weight in ours["weights"].items():
        assert torch.equal(weight, theirs["weights"][name]), name
    for number, moments in ours["optimizer"]["state"].items():
        for name, value in moments.items():
            assert torch.equal(value, theirs["optimizer"]["state"][number][name]), name
    assert torch.equal(ours["sampler"]["generator"], theirs["sampler"]["generator"])
    untimed = [[{**point, "minutes": 0} for point in run.curve] for run in (left, right)]
    assert untimed[0] == untimed[1]


def tiny_target() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=40,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=7,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=0.3,
    )
    return LlamaForCausalLM(config).eval().requires_grad_(False)


def tiny_texts(count: int = 12) -> list[Text]:
    random = np.random.default_rng(0)
    return [
        Text(tuple(random.integers(0, 40, int(length)).tolist()), 3, 0.0) for length in random.integers(12, 30, count)
    ]


def tiny_settings(steps: int = 6, accumulate: int = 1, **changes: object) -> TrainSettings:
    values = {"prefixes": 24, "per_text": 8, "warmup": 2, "rate": 5e-3, "draft_length": 3, "draft_vocab": 30}
    return TrainSettings(steps=steps, accumulate=accumulate, **{**values, **changes})  # type: ignore[arg-type]


def tiny_run(output: Path, settings: TrainSettings, texts: list[Text] | None = None, eval_every: int = 2) -> Run:
    model = tiny_target()
    target = TargetInfo.from_model(model, "tiny")
    head = initial_head(model, target, settings_config(model, target, settings, 30), torch.arange(5, 35))
    layers = chosen_layers(settings, target)
    source = LiveTeacher(model, texts or tiny_texts(), layers, 5)
    return Run(Trainer(head, source, settings), output, LiveTeacher(model, tiny_texts(2), layers, 5), eval_every)


def main(directory: str, steps: str, accumulate: str, *rest: str) -> None:
    torch.set_num_threads(1)
    if "WORLD_SIZE" in os.environ:
        torch.distributed.init_process_group("gloo")
    run = tiny_run(Path(directory), tiny_settings(int(steps), int(accumulate)))
    if rest:
        intact, trainer = run.trainer.update, run.trainer

        def stalling(loss: float) -> float:
            if trainer.step == 3:
                trainer.head.fc.weight.data.add_(1.0)  # half a step
                time.sleep(600)
            return intact(loss)

        trainer.update = stalling  # type: ignore[method-assign]
    run.train(progress=False)
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
