"""The run around the training step: progress, evaluation, checkpoints, the curve."""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from tqdm import tqdm

from dartspec.services.common.errors import InvalidArgument
from dartspec.services.draft.checkpoint import save_head
from dartspec.services.draft.train.checkpoints import Checkpoints
from dartspec.services.draft.train.simulate import evaluate
from dartspec.services.draft.train.teacher import TextSource
from dartspec.services.draft.train.train import Trainer


class Run:
    """A run in a directory: the head as it is, `checkpoints/`, `curve.jsonl` and, if asked for, `tensorboard/`."""

    def __init__(
        self,
        trainer: Trainer,
        output: Path,
        held_out: TextSource | None,
        eval_every: int,
        eval_texts: int = 32,
        board: Any = None,
    ) -> None:
        """board: a SummaryWriter, or None. held_out: texts to evaluate on, or None for loss only."""
        self.trainer, self.output, self.held_out = trainer, output, held_out
        self.eval_every, self.eval_texts, self.board = eval_every, eval_texts, board
        self.checkpoints = Checkpoints(output / "checkpoints")
        self.curve: list[dict[str, Any]] = []
        self._smooth, self._seconds = 0.0, 0.0

    def resume(self, allow_changes: bool = False) -> bool:
        """Go on from the last complete checkpoint; False when there is none. Raises as `Trainer.load` does."""
        state = self.checkpoints.latest()
        if state is None:
            return False
        self.trainer.load(state["trainer"], allow_changes)
        self.curve, self._smooth, self._seconds = state["curve"], state["smooth"], state["seconds"]
        return True

    def train(self, progress: bool = True) -> list[dict[str, Any]]:
        """Train to the last step, with evaluation and a checkpoint every `eval_every` steps; returns the curve."""
        trainer, settings = self.trainer, self.trainer.settings
        first = trainer.rank == 0
        if first:
            self.output.mkdir(parents=True, exist_ok=True)
            self._write_curve()  # without the points of steps that will be done again
        bar = tqdm(
            total=settings.steps, initial=trainer.step, unit="step", mininterval=5, disable=not (progress and first)
        )
        began = time.monotonic()
        while trainer.step < settings.steps:
            loss = trainer.train_step()
            self._smooth = loss if self._smooth == 0.0 else 0.98 * self._smooth + 0.02 * loss
            bar.update()
            bar.set_postfix(loss=f"{self._smooth:.3f}", prefixes=trainer.prefixes_seen, refresh=False)
            if trainer.step % self.eval_every == 0 or trainer.step == settings.steps:
                if first:
                    self._seconds, began = self._seconds + time.monotonic() - began, time.monotonic()
                    self._save(self._measure())
                    tqdm.write(json.dumps(self.curve[-1]), file=sys.stderr)
                if trainer.world > 1:
                    dist.barrier()
        bar.close()
        return self.curve

    def _measure(self) -> dict[str, Any]:
        trainer = self.trainer
        point: dict[str, Any] = {
            "step": trainer.step,
            "prefixes": trainer.prefixes_seen,
            "loss": round(self._smooth, 4),
        }
        point["minutes"] = round(self._seconds / 60, 2)
        if self.held_out is not None and len(self.held_out):
            with trainer.autocast():
                point.update(dataclasses.asdict(evaluate(trainer.head, self.held_out, self.eval_texts)))
        return point

    def _save(self, point: dict[str, Any]) -> None:
        self.curve.append(point)
        state = {"trainer": self.trainer.state(), "curve": self.curve, "smooth": self._smooth, "seconds": self._seconds}
        self.checkpoints.save(self.trainer.step, state)
        save_head(self.trainer.head, self.output, torch.bfloat16)
        self._write_curve()
        if self.board is not None:
            for name, value in point.items():
                for number, part in enumerate(value if isinstance(value, list) else [value], 1):
                    label = f"{name}/offset_{number}" if isinstance(value, list) else name
                    self.board.add_scalar(label, part, self.trainer.step)
            self.board.flush()

    def _write_curve(self) -> None:
        temporary = self.output / ".curve.jsonl"
        temporary.write_text("".join(json.dumps(point) + "\n" for point in self.curve))
        temporary.replace(self.output / "curve.jsonl")


def tensorboard_writer(directory: Path) -> Any:
    """A SummaryWriter. Raises InvalidArgument when the package tensorboard is not installed."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise InvalidArgument(
            "tensorboard", "needs the package tensorboard, which is not installed: pip install 'dartspec[train]'"
        ) from error
    return SummaryWriter(str(directory))
