"""A draft head that knows nothing: the shipped one's shape with random weights."""

from __future__ import annotations

import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from dartspec.cli.locations import BUILT_IN_MODEL, shipped_directory

SPREAD = 0.02


def make_useless_head(directory: Path, seed: int = 0) -> Path:
    """Write it to ``directory`` and return that."""
    shipped = shipped_directory(BUILT_IN_MODEL)
    assert shipped is not None
    generator = torch.Generator().manual_seed(seed)
    weights = load_file(shipped / "model.safetensors")
    for name, value in weights.items():
        if value.is_floating_point() and value.dim() == 2:
            weights[name] = (SPREAD * torch.randn(value.shape, generator=generator)).to(value.dtype)
    directory.mkdir(parents=True, exist_ok=True)
    save_file(weights, directory / "model.safetensors")
    shutil.copy(shipped / "config.json", directory)
    return directory
