"""A head to go on from: the settings that it fixes, its weights as training wants them, and which head it was."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from pathlib import Path

import torch

from dartspec.services.common.errors import InvalidArgument
from dartspec.services.common.fingerprint import json_digest
from dartspec.services.draft.checkpoint import load_head, with_target
from dartspec.services.draft.config import HeadConfig
from dartspec.services.draft.head import DraftHead
from dartspec.services.draft.target_info import TargetInfo
from dartspec.services.draft.train.initial import new_transition
from dartspec.services.draft.train.settings import TrainSettings

FIXED = ("init", "draft_length", "draft_vocab", "feature_layers", "attention_window", "shift")


def given_settings(config: HeadConfig, settings: TrainSettings, named: Collection[str] = ()) -> TrainSettings:
    """`settings` with the shape of the given head of `config`; a transition rank only when the head has no score.

    named: settings that somebody asked for, rather than left at their default. Raises InvalidArgument for one of those
    that the head fixes.
    """
    for name in FIXED:
        if name in named:
            raise InvalidArgument(name, "the given head decides it; leave it out, or leave out --head")
    rank = config.transition_rank
    if rank and "transition_rank" in named and settings.transition_rank != rank:
        raise InvalidArgument(
            "transition_rank", f"the given head's score has rank {rank}, got {settings.transition_rank}; leave it out"
        )
    return dataclasses.replace(
        settings,
        draft_length=config.draft_length,
        draft_vocab=config.draft_vocab_size,
        feature_layers=",".join(str(layer) for layer in config.feature_layers),
        attention_window=config.attention_window,
        shift=config.shift,
        transition_rank=rank or settings.transition_rank,
    )


def given_head(directory: Path, target: TargetInfo, settings: TrainSettings) -> tuple[DraftHead, str]:
    """The head in `directory` in float32, with a new transition score if `settings` ask for one that it lacks.

    settings: from `given_settings`. The second part is `weights_fingerprint` of what lies in `directory`.
    Raises as `load_head` does.
    """
    head = load_head(directory, target, dtype=torch.float32)
    fingerprint = weights_fingerprint(head)
    # What was measured of the given head will not hold of the one that training makes of it.
    config = dataclasses.replace(head.config, accepted_per_round=None)
    if head.transition is None and settings.transition_rank:
        config = dataclasses.replace(config, transition_rank=settings.transition_rank)
        generator = torch.Generator().manual_seed(settings.seed)
        score = new_transition(config.draft_vocab_size, config.transition_rank, generator)
        head.transition = score.to(head.fc.weight.device)
    head.config = with_target(config, target)
    return head, fingerprint


def weights_fingerprint(head: DraftHead) -> str:
    """Digest of a float32 head's configuration and every bit of its own weights; the target's are not counted."""
    own = sorted(
        (name, value)
        for name, value in head.state_dict().items()
        if name != "lm_head.weight" or not head.lm_head_is_target
    )
    parts = [part for name, value in own for part in (name.encode(), value.cpu().contiguous().numpy().tobytes())]
    return json_digest(dataclasses.replace(head.config, accepted_per_round=None).to_json(), *parts)
