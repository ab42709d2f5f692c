"""Settings of the training loop; free of torch, so that `--help` is quick."""

from __future__ import annotations

from dataclasses import dataclass

from dartspec.services.common.config import between, setting


@dataclass(frozen=True)
class TrainSettings:
    """What the loop does; the defaults are the recipe of the demo head."""

    steps: int = setting(3000, "Optimiser steps.", check=between(1, 10**9))
    prefixes: int = setting(192, "Prefixes a step and process.", check=between(1, 10**6))
    per_text: int = setting(32, "Prefixes sampled from one text in a step.", check=between(1, 10**6))
    shallow_depth: int = setting(3, "Offsets trained for every prefix.", check=between(1, 64))
    deep_share: float = setting(0.2, "Share of prefixes trained at all offsets.", check=between(0.01, 1))
    gamma: float = setting(0.6, "Weight of offset t is gamma to the power t - 1.", check=between(0.01, 1))
    rate: float = setting(2e-3, "Peak learning rate.", check=between(0, 1))
    warmup: int = setting(30, "Steps of linear warm-up.", check=between(0, 10**9))
    clip: float = setting(0.5, "Largest gradient norm.", check=between(1e-6, 1e6))
    weight_decay: float = setting(0.01, "AdamW weight decay.", check=between(0, 1))
    eval_every: int = setting(250, "Steps between evaluations and checkpoints.", check=between(1, 10**9))
    seed: int = setting(0, "Seed of the sampling of texts and prefixes.", check=between(0, 2**31))
