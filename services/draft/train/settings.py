"""Settings of training; free of torch, so that `--help` is quick."""

from __future__ import annotations

from dataclasses import dataclass

from dartspec.services.common.config import between, setting
from dartspec.services.common.errors import InvalidArgument


def _layers(value: str) -> str | None:
    if value and not all(part.isdecimal() for part in value.split(",")):
        return f"must be decoder layers from 0, separated by commas, got {value!r}"
    return None


@dataclass(frozen=True)
class TrainSettings:
    """What is trained and how; the demo head's card has the command that it was made with."""

    steps: int = setting(3000, "Optimiser steps.", check=between(1, 10**9))
    prefixes: int = setting(192, "Prefixes a pass.", check=between(1, 10**6))
    accumulate: int = setting(1, "Passes a step and process whose gradients are added.", check=between(1, 10**6))
    per_text: int = setting(32, "Prefixes sampled from one text in a pass.", check=between(1, 10**6))
    shallow_depth: int = setting(3, "Offsets trained for every prefix.", check=between(1, 64))
    deep_share: float = setting(0.2, "Share of prefixes trained at all offsets.", check=between(0.01, 1))
    gamma: float = setting(0.6, "Weight of offset t is gamma to the power t - 1.", check=between(0.01, 1))
    rate: float = setting(2e-3, "Peak learning rate.", check=between(0, 1))
    warmup: int = setting(30, "Steps of linear warm-up.", check=between(0, 10**9))
    clip: float = setting(0.5, "Largest gradient norm.", check=between(1e-6, 1e6))
    weight_decay: float = setting(0.01, "AdamW weight decay.", check=between(0, 1))
    seed: int = setting(0, "Seed of the sampling of texts and prefixes.", check=between(0, 2**31))
    dtype: str = setting(
        "auto",
        "Numbers of the passes; weights are float32. auto: bfloat16 where the device has it.",
        choices=("auto", "float32", "bfloat16"),
    )
    train: str = setting(
        "all", "The whole head, or its transition score alone, which is cheaper.", choices=("all", "transition")
    )
    init: str = setting("target-last", "The layer to start from.", choices=("target-last", "random"))
    output: str = setting(
        "frozen",
        "Output matrix: the target's rows or the given head's own, or trained from them on.",
        choices=("frozen", "trained"),
    )
    draft_length: int = setting(7, "MASK positions, d - 1.", check=between(0, 63))
    draft_vocab: int = setting(
        8192, "Draft vocabulary, chosen from the text; 0 is the target's whole one.", check=between(0, 10**7)
    )
    feature_layers: str = setting(
        "", "Decoder layers from 0 whose outputs are the features, as 1,14,26; '' is 1, N/2 - 1, N - 4.", check=_layers
    )
    attention_window: int = setting(
        256,
        "Positions that a draft looks back on; 0: all, for texts as long as what is served.",
        check=between(0, 2**24),
    )
    transition_rank: int = setting(
        0, "Rank of a transition score trained with the head; 0: none, or the given head's.", check=between(0, 4096)
    )
    shift: bool = setting(True, "Feed each position the next token; without it the head is for comparison only.")


def check_trained(settings: TrainSettings) -> None:
    """Raise InvalidArgument when `settings`, which describe the head, name nothing that `train` could train."""
    if settings.train != "transition":
        return
    if not settings.transition_rank:
        raise InvalidArgument(
            "train", "there is no transition score to train; give --transition-rank, or a --head that has one"
        )
    if not settings.draft_length:
        raise InvalidArgument("train", "a head of one offset has no transitions; --draft-length must be at least 1")
    if settings.output == "trained":
        raise InvalidArgument("train", "transition leaves the output matrix as it is; leave out --output trained")
