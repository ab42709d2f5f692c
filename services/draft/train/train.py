"""The training loop: sampled prefixes of shuffled texts, bfloat16 passes, float32 master weights."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.utils import clip_grad_norm_
from tqdm import tqdm

from dartspec.services.draft.checkpoint import save_head
from dartspec.services.draft.head import DraftHead
from dartspec.services.draft.train.loss import FrozenOutputKL, restrict_teacher
from dartspec.services.draft.train.packed import PackedText, packed_hidden
from dartspec.services.draft.train.settings import TrainSettings
from dartspec.services.draft.train.simulate import evaluate
from dartspec.services.draft.train.teacher import TeacherCache, TextTensors


def learning_rate(step: int, settings: TrainSettings) -> float:
    """Linear warm-up, then a cosine down to a fiftieth of the peak; `step` counts from 0."""
    if step < settings.warmup:
        return settings.rate * (step + 1) / settings.warmup
    progress = (step - settings.warmup) / max(1, settings.steps - settings.warmup)
    return settings.rate * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * min(1.0, progress))))


def sample_prefixes(text: TextTensors, count: int, generator: torch.Generator) -> Tensor:
    """Up to `count` distinct prefixes n of the answer, prompt_length <= n <= T - 2, ascending: int64 [G]."""
    first, last = text.prompt_length, len(text.tokens) - 2
    order = torch.randperm(last - first + 1, generator=generator)
    return order[:count].sort().values + first


def offset_weights(
    prefixes: Tensor, length: int, depth: int, settings: TrainSettings, generator: torch.Generator
) -> Tensor:
    """Loss weights float32 [G, d]; 0 where offset t has no token x[n+t] in the text, or was not drawn.

    A share of the prefixes is trained at all offsets and weighs more beyond `shallow_depth`, which leaves the
    expected loss unchanged.
    """
    offsets = torch.arange(1, depth + 1)
    weights = settings.gamma ** (offsets - 1).float() * (prefixes[:, None] + offsets < length)
    deep = torch.rand(len(prefixes), 1, generator=generator) < settings.deep_share
    return torch.where(offsets > settings.shallow_depth, weights * deep / settings.deep_share, weights)


class Trainer:
    """Owns master weights, optimiser and sampling state; `run` trains, `save_state`/`load_state` make it resumable."""

    def __init__(self, head: DraftHead, caches: Sequence[TeacherCache], settings: TrainSettings) -> None:
        self.settings, self.caches = settings, caches
        self.rank, self.world = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
        self.head = head.to(torch.bfloat16)
        self.trained = [p for name, p in self.head.named_parameters() if not name.startswith("lm_head")]
        self.head.lm_head.requires_grad_(False)
        self.masters = [p.detach().float().clone().requires_grad_(True) for p in self.trained]
        decayed = [p for p in self.masters if p.dim() > 1]
        plain = [p for p in self.masters if p.dim() == 1]
        groups = [{"params": decayed, "weight_decay": settings.weight_decay}, {"params": plain, "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(groups, lr=settings.rate, betas=(0.9, 0.999), fused=True)
        self.draft_ids = torch.full((head.config.vocab_size,), -1, dtype=torch.int64)
        self.draft_ids[head.target_ids()] = torch.arange(head.config.draft_vocab_size)
        self.generator = torch.Generator().manual_seed(settings.seed * 1000 + self.rank)
        self.step, self.prefixes_seen = 0, 0
        self._texts = self._shuffled()

    def use_masters(self, masters: Sequence[Tensor]) -> None:
        """Take over float32 weights, for example of an earlier run."""
        for mine, given in zip(self.masters, masters, strict=True):
            mine.data.copy_(given)
        self._publish()

    def train_step(self) -> float:
        """One optimiser step; the mean loss per prefix."""
        settings, depth = self.settings, self.head.config.depth
        packed, weights, teachers = [], [], []
        count = 0
        while count < settings.prefixes:
            text = next(self._texts)
            prefixes = sample_prefixes(text, min(settings.per_text, settings.prefixes - count), self.generator)
            packed.append(PackedText(text, prefixes))
            weights.append(offset_weights(prefixes, len(text.tokens), depth, settings, self.generator))
            # The teacher of offset t of prefix n stands at position n + t - 1.
            index = (prefixes[:, None] + torch.arange(depth)).clamp(max=len(text.tokens) - 1)
            teachers.append((text.teacher_ids[index], text.teacher_probs[index]))
            count += len(prefixes)
        weight = torch.cat(weights)
        wanted = weight > 0
        ids = torch.cat([ids for ids, _ in teachers])[wanted]
        probs = torch.cat([probs for _, probs in teachers])[wanted]
        ids, probs = restrict_teacher(ids, probs, self.draft_ids)
        hidden = packed_hidden(self.head, packed, wanted)
        loss = FrozenOutputKL.apply(
            self.head.norm(hidden), self.head.lm_head.weight, ids, probs, weight[wanted] / count
        )
        loss.backward()
        self._update()
        self.prefixes_seen += count * self.world
        return loss.item()

    def run(self, output: Path, held_out: TeacherCache | None, progress: bool = True) -> list[dict[str, Any]]:
        """Train to `settings.steps`, with evaluation and a checkpoint every `eval_every` steps; returns the curve."""
        output.mkdir(parents=True, exist_ok=True)
        curve: list[dict[str, Any]] = []
        bar = tqdm(total=self.settings.steps, initial=self.step, disable=not progress or self.rank > 0, mininterval=10)
        began, smooth = time.monotonic(), 0.0
        while self.step < self.settings.steps:
            loss = self.train_step()
            smooth = loss if smooth == 0.0 else 0.98 * smooth + 0.02 * loss
            bar.update()
            bar.set_postfix(loss=f"{smooth:.3f}", prefixes=self.prefixes_seen, refresh=False)
            if self.step % self.settings.eval_every == 0 or self.step == self.settings.steps:
                if self.rank == 0:
                    point = {"step": self.step, "prefixes": self.prefixes_seen, "loss": round(smooth, 4)}
                    point["minutes"] = round((time.monotonic() - began) / 60, 2)
                    if held_out is not None:
                        point.update(dataclasses.asdict(evaluate(self.head, held_out)))
                    curve.append(point)
                    with (output / "curve.jsonl").open("a") as lines:
                        lines.write(json.dumps(point) + "\n")
                    tqdm.write(json.dumps(point))
                    save_head(self.head, output)
                    self.save_state(output / "state.pt")
                if self.world > 1:
                    dist.barrier()
        bar.close()
        return curve

    def save_state(self, path: Path) -> None:
        """Write masters, optimiser and position to a temporary name, then rename."""
        state = {
            "masters": self.masters,
            "optimizer": self.optimizer.state_dict(),
            "step": self.step,
            "prefixes_seen": self.prefixes_seen,
        }
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        torch.save(state, temporary)
        temporary.replace(path)

    def load_state(self, path: Path) -> None:
        """Go on from `save_state`; texts and prefixes are sampled anew from a seed that depends on the step."""
        state = torch.load(path, weights_only=True)
        self.use_masters(state["masters"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.step, self.prefixes_seen = state["step"], state["prefixes_seen"]
        self.generator.manual_seed(self.settings.seed * 1000 + self.rank + 7919 * self.step)
        self._texts = self._shuffled()

    def _update(self) -> None:
        gradients = torch.cat([p.grad.float().flatten() for p in self.trained if p.grad is not None])
        if self.world > 1:
            dist.all_reduce(gradients)
            gradients /= self.world
        for master, part in zip(self.masters, gradients.split([p.numel() for p in self.masters]), strict=True):
            master.grad = part.view_as(master)
        for parameter in self.trained:
            parameter.grad = None
        clip_grad_norm_(self.masters, self.settings.clip)
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(self.step, self.settings)
        self.optimizer.step()
        self._publish()
        self.step += 1

    @torch.no_grad()
    def _publish(self) -> None:
        for parameter, master in zip(self.trained, self.masters, strict=True):
            parameter.copy_(master)

    def _shuffled(self) -> Iterator[TextTensors]:
        """Endless passes over all texts, each in a new order."""
        while True:
            places = [(cache, index) for cache, part in enumerate(self.caches) for index in range(len(part))]
            for place in torch.randperm(len(places), generator=self.generator).tolist():
                cache, index = places[place]
                yield self.caches[cache][index]
