"""Draft heads on disk: `config.json` and `model.safetensors` under the public parameter names."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from dartspec.services.common.errors import FailedPrecondition, NotFound
from dartspec.services.draft.config import HeadConfig
from dartspec.services.draft.head import DraftHead
from dartspec.services.draft.target_info import TargetInfo

CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"
_OPTIONAL = {"lm_head.weight", "d2t", "t2d"}
_IGNORED = {"embed_tokens.weight"}

logger = logging.getLogger(__name__)


def load_head(
    source: str | Path,
    target: TargetInfo,
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
    allow_other_target: bool = False,
    revision: str | None = None,
) -> DraftHead:
    """Load a head for `target` from a local directory or a hub id (at `revision`), ready for inference.

    dtype and device default to those of the target's embedding. `embed_tokens` in the checkpoint is ignored; a missing
    `lm_head.weight` means the target's rows, those of the draft vocabulary when there is one. A head made for another
    target is refused unless `allow_other_target`; one that does not say gets a warning.
    Raises NotFound when there is no such head, FailedPrecondition when it does not fit, naming the field.
    """
    directory = head_directory(source, revision)
    config = HeadConfig.from_file(directory / CONFIG_FILE)
    _check_target(config, target, directory, allow_other_target)
    tensors = _read_weights(directory / WEIGHTS_FILE)
    dtype, device = dtype or target.embedding.dtype, device or target.embedding.device
    with torch.device(device):
        head = DraftHead(config, target.embedding.to(device, dtype))
    restricted = config.draft_vocab_size < config.vocab_size
    if restricted and not {"d2t", "lm_head.weight"} & tensors.keys():
        raise FailedPrecondition(
            f"draft head {directory}: draft_vocab_size is restricted but model.safetensors lacks d2t"
        )
    state = head.state_dict()
    _check_tensors(state, tensors, directory)
    ids = torch.arange(config.draft_vocab_size) + tensors.get("d2t", torch.zeros(1, dtype=torch.int64))
    if int(ids.min()) < 0 or int(ids.max()) >= config.vocab_size or len(ids.unique()) != len(ids):
        raise FailedPrecondition(
            f"draft head {directory}: d2t must map to distinct target ids below {config.vocab_size}"
        )
    t2d = torch.zeros(config.vocab_size, dtype=torch.bool)
    t2d[ids] = True
    if "t2d" in tensors and not torch.equal(tensors["t2d"].bool(), t2d):
        raise FailedPrecondition(f"draft head {directory}: t2d does not mark the target ids that d2t names")
    state.update({name: tensors[name] for name in tensors.keys() & state.keys()})
    state["t2d"] = t2d
    if "transition.right" in state:  # rows of its transpose are read, a few at a time: they lie together
        state["transition.right"] = state["transition.right"].T.contiguous().T
    if "lm_head.weight" not in tensors:
        state["lm_head.weight"] = target_output_rows(target, ids)
        head.lm_head_is_target = True
    head.load_state_dict(
        {name: value.to(device, dtype if value.is_floating_point() else value.dtype) for name, value in state.items()},
        assign=True,
    )
    return head.requires_grad_(False).eval()


def save_head(head: DraftHead, directory: str | Path, dtype: torch.dtype | None = None) -> None:
    """Write `config.json` and `model.safetensors`, each to a temporary name first, weights before configuration.

    Weights are rounded to `dtype` when one is given.

    The target's embeddings are never written, nor is an output matrix that is the target's.
    """
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    tensors = {
        name: value.detach().to("cpu", dtype if value.is_floating_point() else None).contiguous()
        for name, value in head.state_dict().items()
    }
    if head.lm_head_is_target:
        del tensors["lm_head.weight"]
    weights, config = directory / f".{WEIGHTS_FILE}.{os.getpid()}", directory / f".{CONFIG_FILE}.{os.getpid()}"
    save_file(tensors, weights, metadata={"format": "pt"})
    weights.chmod(0o644)
    config.write_text(json.dumps(head.config.to_json(), indent=1) + "\n")
    weights.replace(directory / WEIGHTS_FILE)
    config.replace(directory / CONFIG_FILE)


def head_directory(source: str | Path, revision: str | None = None) -> Path:
    """The local directory of a head: `source` itself, or its download when it is a hub id like `owner/name`."""
    path = Path(source).expanduser()
    if path.is_dir():
        return path
    text = str(source)
    if text.startswith((".", "/", "~")) or text.count("/") != 1:
        raise NotFound(f"draft head {text!r}: no such directory, and not a hub id like 'owner/name'")
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(text, revision=revision, allow_patterns=[CONFIG_FILE, WEIGHTS_FILE]))
    except (OSError, ValueError) as error:
        raise NotFound(f"draft head {text!r} is not on disk and could not be downloaded: {error}") from error


def target_output_rows(target: TargetInfo, ids: Tensor) -> Tensor:
    """The target's output matrix [V_draft, H] of the draft vocabulary: shared when it is the whole one, else copied."""
    if torch.equal(ids.cpu(), torch.arange(target.vocab_size)):
        return target.lm_head
    return target.lm_head[ids.to(target.lm_head.device)]


def with_target(config: HeadConfig, target: TargetInfo) -> HeadConfig:
    """`config` marked as made for `target`, with its feature layers written out."""
    return dataclasses.replace(
        config,
        target_fingerprint=target.fingerprint,
        feature_layers=config.feature_layers or target.feature_layers,
    )


def _check_target(config: HeadConfig, target: TargetInfo, directory: Path, allow_other_target: bool) -> None:
    for name, expected in (
        ("hidden_size", target.hidden_size),
        ("target_hidden_size", target.hidden_size),
        ("vocab_size", target.vocab_size),
    ):
        if getattr(config, name) != expected:
            raise FailedPrecondition(
                f"draft head {directory}: {name} is {getattr(config, name)} but target {target.name!r} has {expected}; "
                "use a head trained for this target"
            )
    layers = config.feature_layers or target.feature_layers
    if any(not 0 <= layer < target.num_layers for layer in layers):
        raise FailedPrecondition(
            f"draft head {directory}: feature_layers {layers} do not exist in target {target.name!r} "
            f"of {target.num_layers} layers"
        )
    if not config.target_fingerprint:
        logger.warning("draft head %s does not say which target it was made for; assuming %s", directory, target.name)
    elif config.target_fingerprint != target.fingerprint and not allow_other_target:
        raise FailedPrecondition(
            f"draft head {directory} was made for target {config.target_fingerprint} but target {target.name!r} is "
            f"{target.fingerprint}; use its own head, or allow another target explicitly"
        )


def _read_weights(path: Path) -> dict[str, Tensor]:
    if not path.is_file():
        raise NotFound(
            f"draft head: {path} does not exist; a head is a directory with config.json and model.safetensors"
        )
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise FailedPrecondition(f"draft head: {path} cannot be read: {error}") from error


def _check_tensors(expected: dict[str, Tensor], found: dict[str, Tensor], directory: Path) -> None:
    missing = sorted(expected.keys() - found.keys() - _OPTIONAL)
    if missing:
        raise FailedPrecondition(f"draft head {directory}: model.safetensors lacks {', '.join(missing)}")
    unknown = sorted(found.keys() - expected.keys() - _IGNORED)
    if unknown:
        raise FailedPrecondition(f"draft head {directory}: model.safetensors holds unknown {', '.join(unknown)}")
    for name in sorted(expected.keys() & found.keys()):
        if expected[name].shape != found[name].shape:
            raise FailedPrecondition(
                f"draft head {directory}: {name} has shape {list(found[name].shape)}, "
                f"config.json asks for {list(expected[name].shape)}"
            )
