"""`dartspec draft`: from a target and prompts to a head."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from dartspec.services.common.config import options
from dartspec.services.draft.convert_gguf import PACKAGED_MODEL, resolve_model
from dartspec.services.draft.train.settings import TrainSettings

_model_options = [
    click.option("--model", default=PACKAGED_MODEL, show_default=True, help="Directory, hub id, .gguf file or name."),
    click.option("--revision", default=None, help="Revision of a hub id."),
    click.option("--threads", type=click.IntRange(1), default=None, help="CPU threads of this process."),
]


def _with_model(function: Any) -> Any:
    for option in reversed(_model_options):
        function = option(function)
    return function


@click.group()
def draft() -> None:
    """Make a draft head: let the target write text, then train on it."""


@draft.command()
@_with_model
@click.option("--text", "shards", type=click.Path(exists=True, path_type=Path), multiple=True, required=True)
@click.option("--cache", type=click.Path(path_type=Path), required=True, help="Where features and teacher are kept.")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Head directory, written as training goes.")
@click.option("--max-length", type=click.IntRange(8), default=448, show_default=True, help="Texts are cut here.")
@click.option("--draft-length", type=click.IntRange(1, 63), default=7, show_default=True, help="MASK positions, d - 1.")
@click.option("--draft-vocab", type=click.IntRange(64), default=8192, show_default=True)
@click.option("--teacher-tokens", type=click.IntRange(1), default=64, show_default=True, help="Kept a position.")
@click.option("--resume/--no-resume", default=True, show_default=True, help="Go on from OUT/state.pt when it exists.")
@options(TrainSettings, "DARTSPEC_TRAIN")
def train(
    model: str,
    revision: str | None,
    threads: int | None,
    shards: tuple[Path, ...],
    cache: Path,
    out: Path,
    max_length: int,
    draft_length: int,
    draft_vocab: int,
    teacher_tokens: int,
    resume: bool,
    settings: TrainSettings,
) -> None:
    """Train a head on texts that the target wrote; under torchrun, one process a worker with averaged gradients."""
    import torch
    import torch.distributed as dist
    from transformers import AutoModelForCausalLM

    from dartspec.services.draft.target_info import TargetInfo
    from dartspec.services.draft.train.data import choose_vocabulary, read_texts, split_held_out
    from dartspec.services.draft.train.initial import head_config, initial_head
    from dartspec.services.draft.train.teacher import TeacherCache, build
    from dartspec.services.draft.train.train import Trainer

    dtype = _bfloat16(threads)
    if dist.is_torchelastic_launched():
        dist.init_process_group("gloo")
    rank = dist.get_rank() if dist.is_initialized() else 0
    target_model = AutoModelForCausalLM.from_pretrained(resolve_model(model, revision), dtype=dtype).eval()
    target = TargetInfo.from_model(target_model, model)
    texts = read_texts(shards, max_length)
    training, held_out = split_held_out(texts, 20)
    held_out = [text for text in held_out if text.temperature == 0] or held_out
    if rank == 0:
        for name, part in (("train", training), ("held_out", held_out)):
            if not (cache / name).exists():
                build(target_model, part, target.feature_layers, teacher_tokens, cache / name)
    if dist.is_initialized():
        dist.barrier()
    vocabulary = torch.from_numpy(choose_vocabulary(training, draft_vocab, target.vocab_size))
    config = head_config(target_model, target, draft_length, len(vocabulary))
    trainer = Trainer(initial_head(target_model, target, config, vocabulary), [TeacherCache(cache / "train")], settings)
    del target_model
    if resume and (out / "state.pt").exists():
        trainer.load_state(out / "state.pt")
    curve = trainer.run(out, TeacherCache(cache / "held_out"))
    if rank == 0 and curve:
        click.echo(json.dumps(curve[-1]))


def _bfloat16(threads: int | None) -> Any:
    import torch

    if threads:
        torch.set_num_threads(threads)
    return torch.bfloat16
