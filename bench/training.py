"""Training steps of a head for a model of SmolLM2-135M's shape, weights random: prefixes per second, time by part.

Wall time says what a user waits for, processor time what it costs on a machine that has other work. With --compare,
settings are changed one at a time.
"""

from __future__ import annotations

import dataclasses
import json
import time
from typing import Any

import click
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from dartspec.services.draft.target_info import TargetInfo
from dartspec.services.draft.train.initial import initial_head, settings_config
from dartspec.services.draft.train.settings import TrainSettings
from dartspec.services.draft.train.teacher import TextTensors
from dartspec.services.draft.train.train import Trainer

TEXTS, LENGTH, PROMPT, KEPT = 64, 260, 90, 64  # about those of the demo head's texts
VARIANTS: dict[str, dict[str, Any]] = {
    "draft_vocab 4096": {"draft_vocab": 4096},
    "draft_vocab 2048": {"draft_vocab": 2048},
    "per_text 96": {"per_text": 96},
    "deep_share 0.1": {"deep_share": 0.1},
    "all offsets": {"deep_share": 1.0},
    "output trained": {"output": "trained"},
    "transition_rank 128": {"transition_rank": 128},
    "transition_rank 128, that alone": {"transition_rank": 128, "train": "transition"},
    "draft_vocab 4096, per_text 96": {"draft_vocab": 4096, "per_text": 96},
}


class RandomTexts:
    """Texts of random tokens with random features, in memory."""

    fingerprint = ""

    def __init__(self, vocab_size: int, width: int) -> None:
        generator = torch.Generator().manual_seed(0)
        self.sizes = [(LENGTH, PROMPT)] * TEXTS
        self._texts = [
            TextTensors(
                torch.randint(vocab_size, (LENGTH,), generator=generator),
                PROMPT,
                0.0,
                torch.randn(LENGTH, width, generator=generator).bfloat16(),
                torch.randint(vocab_size, (LENGTH, KEPT), generator=generator),
                torch.rand(LENGTH, KEPT, generator=generator) / KEPT,
            )
            for _ in range(TEXTS)
        ]

    def __len__(self) -> int:
        return TEXTS

    def batch(self, numbers: Any) -> list[TextTensors]:
        """The texts of these numbers."""
        return [self._texts[number] for number in numbers]


def measure(trainer: Trainer, steps: int) -> dict[str, Any]:
    """Prefixes per second of wall and of processor time, and each part's share of the wall time."""
    spent = dict.fromkeys(("data", "forward", "output and loss", "backward", "optimiser"), 0.0)
    trainer.train_step()
    began, processor = time.perf_counter(), time.process_time()
    for _ in range(steps):
        marks = [time.perf_counter()]
        batch = trainer.prepare(trainer.sampler.next_pass())
        marks.append(time.perf_counter())
        hidden = trainer.hidden(batch)
        marks.append(time.perf_counter())
        loss = trainer.loss(hidden, batch)
        marks.append(time.perf_counter())
        loss.backward()
        marks.append(time.perf_counter())
        trainer.update(float(loss.detach()))
        marks.append(time.perf_counter())
        for name, start, end in zip(spent, marks, marks[1:], strict=False):
            spent[name] += end - start
    wall, used = time.perf_counter() - began, time.process_time() - processor
    prefixes = steps * trainer.settings.prefixes
    return {
        "prefixes_per_second": round(prefixes / wall, 1),
        "prefixes_per_processor_second": round(prefixes / used, 1),
        "share": {name: round(seconds / wall, 3) for name, seconds in spent.items()},
    }


@click.command()
@click.option("--steps", type=click.IntRange(1), default=8, show_default=True, help="Steps of each measurement.")
@click.option("--prefixes", type=click.IntRange(1), default=192, show_default=True)
@click.option("--per-text", type=click.IntRange(1), default=TrainSettings.per_text, show_default=True)
@click.option("--threads", type=click.IntRange(1), default=2, show_default=True)
@click.option("--dtype", type=click.Choice(["float32", "bfloat16"]), default="float32", show_default=True)
@click.option("--compare/--no-compare", default=False, help="Other settings, too.")
def main(steps: int, prefixes: int, per_text: int, threads: int, dtype: str, compare: bool) -> None:
    """Measure training steps; one JSON object as the last line."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    shape = LlamaConfig(
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=7,  # the head sees three of them
        num_attention_heads=9,
        num_key_value_heads=3,
    )
    model = LlamaForCausalLM(shape).requires_grad_(False)
    target = TargetInfo.from_model(model, "random")
    base = TrainSettings(prefixes=prefixes, per_text=per_text, dtype=dtype)
    source = RandomTexts(shape.vocab_size, 3 * shape.hidden_size)
    results = {}
    for name, changes in {"defaults": {}, **(VARIANTS if compare else {})}.items():
        settings = dataclasses.replace(base, **changes)
        vocabulary = torch.arange(settings.draft_vocab)
        head = initial_head(model, target, settings_config(model, target, settings, len(vocabulary)), vocabulary)
        results[name] = measure(Trainer(head, source, settings, getattr(torch, dtype)), steps)
        click.echo(f"{name}: {results[name]}", err=True)
    settings_of_all = {"dtype": dtype, "threads": threads, "prefixes": prefixes, "per_text": per_text, "steps": steps}
    report = {**settings_of_all, "results": results}
    click.echo(json.dumps(report))


if __name__ == "__main__":
    main()
