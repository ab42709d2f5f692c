"""Tiny heads on disk, and runs that go on from one, in this process or in one of their own.

    python -m tests.unit.draft.tiny_given OUTPUT HEAD

trains the transition score of HEAD to OUTPUT and stops moving after the first checkpoint, in the middle of a step.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch

from dartspec.services.draft.checkpoint import save_head
from dartspec.services.draft.config import HeadConfig
from dartspec.services.draft.target_info import TargetInfo
from dartspec.services.draft.train.given import given_head, given_settings
from dartspec.services.draft.train.initial import initial_head, settings_config
from dartspec.services.draft.train.loop import Run
from dartspec.services.draft.train.settings import TrainSettings
from dartspec.services.draft.train.teacher import LiveTeacher
from dartspec.services.draft.train.train import Trainer

from .tiny_training import tiny_settings, tiny_target, tiny_texts

VOCABULARY = torch.arange(5, 35)


@torch.no_grad()
def tiny_head(directory: Path, rank: int = 0, own_output: bool = False, seed: int = 0) -> Path:
    """A bfloat16 head with noise on all its weights; own_output: its output matrix is not the target's."""
    model, settings = tiny_target(), tiny_settings(transition_rank=rank)
    target = TargetInfo.from_model(model, "tiny")
    head = initial_head(model, target, settings_config(model, target, settings, len(VOCABULARY)), VOCABULARY)
    head.lm_head_is_target = not own_output
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in head.named_parameters():
        if name != "lm_head.weight" or own_output:
            parameter += 0.05 * torch.randn(parameter.shape, generator=generator)
    save_head(head, directory, torch.bfloat16)
    return directory


def tiny_trainer(directory: Path, settings: TrainSettings) -> Trainer:
    model = tiny_target()
    target = TargetInfo.from_model(model, "tiny")
    settings = given_settings(HeadConfig.from_file(directory / "config.json"), settings)
    head, fingerprint = given_head(directory, target, settings)
    source = LiveTeacher(model, tiny_texts(), head.config.feature_layers, 5)
    return Trainer(head, source, settings, given=fingerprint)


def given_run(output: Path, directory: Path, settings: TrainSettings) -> Run:
    trainer = tiny_trainer(directory, settings)
    held_out = LiveTeacher(tiny_target(), tiny_texts(2), trainer.head.config.feature_layers, 5)
    return Run(trainer, output, held_out, eval_every=2)


def main(output: str, directory: str) -> None:
    torch.set_num_threads(1)
    run = given_run(Path(output), Path(directory), tiny_settings(train="transition"))
    intact, trainer = run.trainer.update, run.trainer

    def stalling(loss: float) -> float:
        if trainer.step == 3:
            trainer.trained["transition.left"].data.add_(1.0)  # half a step
            time.sleep(600)
        return intact(loss)

    trainer.update = stalling  # type: ignore[method-assign]
    run.train(progress=False)


if __name__ == "__main__":
    main(*sys.argv[1:])
