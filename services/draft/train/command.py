"""`dartspec draft train`: from texts of the target to a head."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from dartspec.services.common.config import between, options, setting
from dartspec.services.common.errors import InvalidArgument
from dartspec.services.draft.convert_gguf import PACKAGED_MODEL, resolve_model
from dartspec.services.draft.train.settings import TrainSettings, check_trained

if TYPE_CHECKING:
    from dartspec.services.draft.head import DraftHead
    from dartspec.services.draft.target_info import TargetInfo
    from dartspec.services.draft.train.data import Text
    from dartspec.services.draft.train.teacher import TextSource

HELD_OUT_EVERY = 20


@dataclass(frozen=True)
class RunSettings:
    """What a run reads, writes and reports; none of it changes what is learned, but for the teacher's rounding."""

    model: str = setting(PACKAGED_MODEL, "Target: directory, hub id, .gguf file or name.")
    revision: str = setting("", "Revision of a hub id.")
    device: str = setting("auto", "auto: CUDA when there is one.", choices=("auto", "cpu", "cuda"))
    threads: int = setting(0, "CPU threads of this process; 0 leaves them to torch.", check=between(0, 1024))
    teacher: str = setting(
        "cached", "Run the target once and keep the results in --cache, or in every step.", choices=("cached", "live")
    )
    teacher_tokens: int = setting(64, "Likeliest tokens of the teacher kept a position.", check=between(1, 10**6))
    max_length: int = setting(448, "Texts are cut here.", check=between(8, 10**6))
    eval_every: int = setting(250, "Steps between evaluations and checkpoints.", check=between(1, 10**9))
    eval_texts: int = setting(32, "Held-out texts of an evaluation.", check=between(1, 10**6))
    resume: str = setting(
        "auto",
        "Go on from the last checkpoint in OUT, if there is one: auto wants the same settings and texts, changed takes "
        "others, never begins anew.",
        choices=("auto", "changed", "never"),
    )
    tensorboard: bool = setting(False, "Write TensorBoard logs to OUT/tensorboard.")


@click.command()
@click.option(
    "--text",
    "shards",
    type=click.Path(exists=True, path_type=Path),
    multiple=True,
    required=True,
    help="Directory of `draft generate`, or one of its shards; repeatable.",
)
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Head directory, written as training goes.")
@click.option("--cache", type=click.Path(path_type=Path), help="Where a cached teacher is kept; needed with it.")
@click.option("--head", "given", help="Head directory or hub id to go on from instead of --init; it decides the shape.")
@options(RunSettings, "DARTSPEC_TRAIN", argument="run")
@options(TrainSettings, "DARTSPEC_TRAIN")
def train(
    shards: tuple[Path, ...],
    out: Path,
    cache: Path | None,
    given: str | None,
    run: RunSettings,
    settings: TrainSettings,
) -> None:
    """Train a head on texts that the target wrote.

    A run that ended or was killed goes on from OUT's last checkpoint, bit for bit the run that was not. Under torchrun,
    every process takes its turns of the passes and gradients are added up.
    """
    if run.teacher == "cached" and cache is None:
        raise InvalidArgument("cache", "a cached teacher needs --cache DIRECTORY; or use --teacher live")
    if settings.warmup >= settings.steps:
        raise InvalidArgument("warmup", f"must be less than steps ({settings.steps}), got {settings.warmup}")

    import torch
    import torch.distributed as dist

    from dartspec.services.draft.checkpoint import head_directory
    from dartspec.services.draft.target_info import TargetInfo
    from dartspec.services.draft.train.data import read_texts, split_held_out
    from dartspec.services.draft.train.initial import chosen_layers
    from dartspec.services.draft.train.loop import Run, tensorboard_writer
    from dartspec.services.draft.train.train import Trainer

    start = None if given is None else head_directory(given)
    if start is not None:
        if start.resolve() == out.resolve():
            raise InvalidArgument("head", f"--out {out} would be written over it; name another --out")
        settings = _settings_of(start, settings)
    check_trained(settings)
    if run.threads:
        torch.set_num_threads(run.threads)
    device, dtype = _device(run.device), None
    if dist.is_torchelastic_launched():
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    rank = dist.get_rank() if dist.is_initialized() else 0
    dtype = _dtype(settings.dtype, device)
    board = tensorboard_writer(out / "tensorboard") if run.tensorboard and rank == 0 else None
    training, held_out = split_held_out(read_texts(shards, run.max_length), HELD_OUT_EVERY)
    held_out = [text for text in held_out if text.temperature == 0] or held_out
    if not training:
        raise InvalidArgument("text", "holds no text of two answer tokens or more that is not held out")

    model = _target(run, device, dtype)
    target = TargetInfo.from_model(model, run.model)
    head, fingerprint = _head(start, settings, model, target, training)
    layers = chosen_layers(settings, target)
    if run.teacher_tokens > target.vocab_size:
        raise InvalidArgument("teacher_tokens", f"the target has {target.vocab_size}, got {run.teacher_tokens}")

    source, evaluation = _sources(run, cache, model, target, layers, training, held_out)
    if run.teacher == "cached":
        del model
    trainer = Trainer(head.to(device), source, settings, dtype, fingerprint)
    loop = Run(trainer, out, evaluation, run.eval_every, run.eval_texts, board)
    if run.resume != "never" and loop.resume(allow_changes=run.resume == "changed") and rank == 0:
        click.echo(f"going on from step {trainer.step} of {out}", err=True)
    curve = loop.train()
    if dist.is_initialized():
        dist.destroy_process_group()
    if rank == 0 and curve:
        click.echo(json.dumps(curve[-1]))


def _settings_of(directory: Path, settings: TrainSettings) -> TrainSettings:
    """`settings` for going on from the head in `directory`. Raises InvalidArgument for a flag that contradicts it."""
    from dartspec.services.draft.checkpoint import CONFIG_FILE
    from dartspec.services.draft.config import HeadConfig
    from dartspec.services.draft.train.given import given_settings

    context = click.get_current_context()
    named = {
        name for name in context.params if context.get_parameter_source(name) not in (None, ParameterSource.DEFAULT)
    }
    return given_settings(HeadConfig.from_file(directory / CONFIG_FILE), settings, named)


def _head(
    start: Path | None, settings: TrainSettings, model: Any, target: TargetInfo, training: Sequence[Text]
) -> tuple[DraftHead, str]:
    """The head that training starts from, and the fingerprint of the one in `start`; "" when it begins anew."""
    import torch

    from dartspec.services.draft.train.data import choose_vocabulary
    from dartspec.services.draft.train.given import given_head
    from dartspec.services.draft.train.initial import new_head

    if start is not None:
        return given_head(start, target, settings)
    if settings.draft_vocab > target.vocab_size:
        raise InvalidArgument("draft_vocab", f"the target has {target.vocab_size} tokens, got {settings.draft_vocab}")
    chosen = choose_vocabulary(training, settings.draft_vocab or target.vocab_size, target.vocab_size)
    return new_head(model, target, settings, torch.from_numpy(chosen)), ""


def _sources(
    run: RunSettings,
    cache: Path | None,
    model: Any,
    target: TargetInfo,
    layers: tuple[int, ...],
    training: Sequence[Text],
    held_out: Sequence[Text],
) -> tuple[TextSource, TextSource | None]:
    """Training and held-out texts (None without any) with their teacher; one process builds a cache, others wait."""
    import torch.distributed as dist

    from dartspec.services.draft.train.teacher import LiveTeacher, open_or_build

    kept, name = run.teacher_tokens, target.fingerprint
    if run.teacher == "live" or cache is None:
        evaluation = LiveTeacher(model, held_out, layers, kept, name) if held_out else None
        return LiveTeacher(model, training, layers, kept, name), evaluation
    rank = dist.get_rank() if dist.is_initialized() else 0
    if rank > 0:
        dist.barrier()
    first = open_or_build(model, training, layers, kept, cache / "train", name)
    second = open_or_build(model, held_out, layers, kept, cache / "held_out", name) if held_out else None
    if dist.is_initialized() and rank == 0:
        dist.barrier()
    return first, second


def _target(run: RunSettings, device: Any, dtype: Any) -> Any:
    from transformers import AutoModelForCausalLM

    directory = resolve_model(run.model, run.revision or None)
    return AutoModelForCausalLM.from_pretrained(directory, dtype=dtype).eval().requires_grad_(False).to(device)


def _device(name: str) -> Any:
    """CPU, or this process's GPU. Raises InvalidArgument when CUDA is asked for and not there."""
    import os

    import torch

    if name == "cpu" or (name == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise InvalidArgument("device", "torch sees no CUDA device; use --device cpu")
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    torch.cuda.set_device(device)
    return device


def _dtype(name: str, device: Any) -> Any:
    import torch

    if name == "auto":
        if device.type == "cuda":
            native = torch.cuda.is_bf16_supported(including_emulation=False)
        else:
            found = torch.cpu.get_capabilities()
            native = bool(found.get("amx_bf16") or found.get("avx512_bf16") or found.get("bf16"))
        return torch.bfloat16 if native else torch.float32
    return getattr(torch, name)
