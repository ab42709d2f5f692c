"""The training step: sampled prefixes of shuffled texts, passes in float32 or bfloat16, float32 weights."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.utils import clip_grad_norm_

from dartspec.services.common.errors import FailedPrecondition
from dartspec.services.draft.head import DraftHead
from dartspec.services.draft.train.loss import OutputKL, restrict_teacher
from dartspec.services.draft.train.packed import PackedText, packed_hidden
from dartspec.services.draft.train.sampling import Chosen, Sampler
from dartspec.services.draft.train.settings import TrainSettings, check_trained
from dartspec.services.draft.train.teacher import TextSource


def learning_rate(step: int, settings: TrainSettings) -> float:
    """Linear warm-up, then a cosine down to a fiftieth of the peak; `step` counts from 0."""
    if step < settings.warmup:
        return settings.rate * (step + 1) / settings.warmup
    progress = (step - settings.warmup) / max(1, settings.steps - settings.warmup)
    return settings.rate * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * min(1.0, progress))))


def is_trained(name: str, settings: TrainSettings) -> bool:
    """Whether `settings` train the head's parameter of this name."""
    if settings.train == "transition":
        return name.startswith("transition.")
    return name != "lm_head.weight" or settings.output == "trained"


@dataclass(frozen=True)
class Batch:
    """One pass: texts with their prefixes, which rows are wanted (bool [G, d]), and per wanted row (R of them) the
    teacher over the draft vocabulary, the weight, and the draft id of the token before, -1 for none."""

    packed: list[PackedText]
    wanted: Tensor
    ids: Tensor
    probs: Tensor
    weights: Tensor
    previous: Tensor


class Trainer:
    """Owns the head's weights, the optimiser and the stream of passes; `state` and `load` continue a run exactly.

    A step adds the gradients of `accumulate` passes of every process, so that two processes do what one does with twice
    the passes a step, to rounding. What `settings` do not train stays as it is, to the bit, and costs no gradient.
    """

    def __init__(
        self,
        head: DraftHead,
        source: TextSource,
        settings: TrainSettings,
        dtype: torch.dtype = torch.float32,
        given: str = "",
    ) -> None:
        """given: `weights_fingerprint` of the head that `head` goes on from, "" for a new one.

        Raises InvalidArgument when `settings` leave nothing to train.
        """
        check_trained(settings)
        self.settings, self.source, self.dtype, self.given = settings, source, dtype, given
        self.rank, self.world = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
        self.head = head.float().requires_grad_(False)
        self.device = head.fc.weight.device
        if settings.output == "trained":
            # A copy: the matrix may be the target's own, which a live teacher still needs.
            head.lm_head_is_target = False
            head.lm_head.weight = torch.nn.Parameter(head.lm_head.weight.detach().clone())
        self.trained = {name: p.requires_grad_() for name, p in head.named_parameters() if is_trained(name, settings)}
        for parameter in self.trained.values():
            # A loaded head may lie in memory as proposing likes it; a fused step and `update` go by rows.
            parameter.data = parameter.data.contiguous()
        self._frozen_output = None if settings.output == "trained" else head.lm_head.weight.detach().to(dtype)
        matrices = [p for p in self.trained.values() if p.dim() > 1]
        vectors = [p for p in self.trained.values() if p.dim() == 1]
        self.optimizer = torch.optim.AdamW(
            [
                {"params": matrices, "weight_decay": settings.weight_decay},
                {"params": vectors, "weight_decay": 0.0},
            ],
            lr=settings.rate,
            betas=(0.9, 0.999),
            fused=True,
        )
        self._draft_ids = torch.full((head.config.vocab_size,), -1, dtype=torch.int64, device=self.device)
        self._draft_ids[head.target_ids()] = torch.arange(head.config.draft_vocab_size, device=self.device)
        self.sampler = Sampler(source.sizes, settings, head.config.depth)
        self.step, self.prefixes_seen = 0, 0

    def train_step(self) -> float:
        """One optimiser step over the passes of all processes; the mean loss per prefix."""
        passes = self.settings.accumulate * self.world
        total = 0.0
        for number in range(passes):
            chosen = self.sampler.next_pass()  # everyone draws all passes, so that the stream is the same everywhere
            if chosen and number % self.world == self.rank:
                batch = self.prepare(chosen)
                loss = self.loss(self.hidden(batch), batch)
                loss.backward()
                total += float(loss.detach())
        return self.update(total)

    def prepare(self, chosen: Sequence[Chosen]) -> Batch:
        """Features, teacher and weights of a pass."""
        device = self.device
        texts = self.source.batch([entry.text for entry in chosen])
        ids, probs, before = [], [], []
        for entry, text in zip(chosen, texts, strict=True):
            place = text.tokens.device
            group, offset = (part.to(place) for part in (entry.weights > 0).nonzero(as_tuple=True))
            # The teacher of offset t of prefix n stands at position n + t - 1, where the token before it is, too.
            teacher = entry.prefixes.to(place)[group] + offset
            ids.append(text.teacher_ids[teacher])
            probs.append(text.teacher_probs[teacher])
            # Offset 1 follows the pending token, which the head is fed; it has no transition.
            before.append(torch.where(offset > 0, text.tokens[teacher], -1))
        weights = torch.cat([entry.weights for entry in chosen])
        wanted = weights > 0
        total = self.settings.prefixes * self.settings.accumulate * self.world
        previous = torch.cat(before).to(device)
        return Batch(
            [PackedText(text, entry.prefixes) for text, entry in zip(texts, chosen, strict=True)],
            wanted.to(device),
            *restrict_teacher(torch.cat(ids).to(device), torch.cat(probs).to(device), self._draft_ids),
            (weights[wanted] / total).to(device),
            torch.where(previous >= 0, self._draft_ids[previous.clamp(min=0)], -1),
        )

    def hidden(self, batch: Batch) -> Tensor:
        """What the output matrix is applied to, [R, H]; without a graph when only what comes after it is trained."""
        no_graph = torch.no_grad() if self.settings.train == "transition" else contextlib.nullcontext()
        with self.autocast(), no_graph:
            return self.head.norm(packed_hidden(self.head, batch.packed, batch.wanted))

    def loss(self, hidden: Tensor, batch: Batch) -> Tensor:
        """This pass's part of the step's mean loss per prefix."""
        matrix = self._frozen_output if self._frozen_output is not None else self.head.lm_head.weight.to(self.dtype)
        left = right = None
        if self.head.transition is not None:
            known = (batch.previous >= 0)[:, None]
            left = self.head.transition.left[batch.previous.clamp(min=0)] * known
            right = self.head.transition.right
        return OutputKL.apply(hidden, matrix, batch.ids, batch.probs, batch.weights, left, right)

    def update(self, loss: float) -> float:
        """Add up gradients and `loss` of all processes, clip, and step; the loss of all."""
        settings, parameters = self.settings, list(self.trained.values())
        if self.world > 1:
            gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
            flat = torch.cat(
                [*(gradient.flatten() for gradient in gradients), torch.tensor([loss], device=self.device)]
            )
            dist.all_reduce(flat)
            for parameter, part in zip(parameters, flat[:-1].split([p.numel() for p in parameters]), strict=True):
                parameter.grad = part.view_as(parameter)
            loss = float(flat[-1])
        clip_grad_norm_(parameters, settings.clip)
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(self.step, settings)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.step += 1
        self.prefixes_seen += settings.prefixes * settings.accumulate * self.world
        return loss

    def autocast(self) -> torch.autocast:
        """The context that passes run in."""
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.dtype == torch.bfloat16)

    def state(self) -> dict[str, Any]:
        """All that the rest of the run depends on; the same in every process."""
        return {
            "weights": {name: p.detach() for name, p in self.trained.items()},
            "optimizer": self.optimizer.state_dict(),
            "step": self.step,
            "prefixes_seen": self.prefixes_seen,
            "sampler": self.sampler.state(),
            "settings": dataclasses.asdict(self.settings),
            "texts": self.source.fingerprint,
            "vocabulary": self.head.target_ids().cpu(),
            "given": self.given,
        }

    @torch.no_grad()
    def load(self, state: dict[str, Any], allow_changes: bool = False) -> None:
        """Go on from `state`. Raises FailedPrecondition when it was made with other settings, texts, head or weights.

        allow_changes: take weights, optimiser and step of a run with other settings, texts or given head, which is no
        longer the run without an interruption; names and shapes of the weights must still be the same.
        """
        mine = self.state()
        theirs = {"train": "all", **state["settings"]}  # states older than the setting trained everything
        changed = [name for name, value in mine["settings"].items() if theirs.get(name) != value]
        changed += ["text"] if state["texts"] != mine["texts"] else []
        changed += ["head"] if state.get("given", "") != mine["given"] else []
        if changed and not allow_changes:
            raise FailedPrecondition(
                f"the checkpoint has another {', '.join(changed)}; give the same, --resume changed to go on "
                "all the same, or --resume never to begin anew"
            )
        if not torch.equal(state["vocabulary"], mine["vocabulary"]):
            raise FailedPrecondition("the checkpoint has another draft vocabulary; --resume never begins anew")
        shapes = {name: weight.shape for name, weight in state["weights"].items()}
        if shapes != {name: p.shape for name, p in self.trained.items()}:
            raise FailedPrecondition("the checkpoint trained other weights or shapes; --resume never begins anew")
        for name, parameter in self.trained.items():
            parameter.copy_(state["weights"][name])
        self.optimizer.load_state_dict(state["optimizer"])
        self.step, self.prefixes_seen = state["step"], state["prefixes_seen"]
        self.sampler.load(state["sampler"])
