"""Training states on disk: each complete or absent, the last two kept."""

from __future__ import annotations

import logging
import os
import re
from pathlib import Path
from typing import Any

import torch

KEPT = 2
_NAME = re.compile(r"step-(\d{9})\.pt")

logger = logging.getLogger(__name__)


class Checkpoints:
    """States `step-NNNNNNNNN.pt` in one directory; a process killed while it writes one leaves those before it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def save(self, step: int, state: dict[str, Any]) -> None:
        """Write to a temporary name, flush to disk, rename; then remove all but the last `KEPT`."""
        self.directory.mkdir(parents=True, exist_ok=True)
        for left_over in self.directory.glob(".step-*"):
            left_over.unlink(missing_ok=True)
        temporary = self.directory / f".step-{step:09d}.{os.getpid()}"
        with temporary.open("wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self.directory / f"step-{step:09d}.pt")
        for old in self.paths()[:-KEPT]:
            old.unlink(missing_ok=True)

    def latest(self) -> dict[str, Any] | None:
        """The newest state that can be read, on the CPU; None when there is none."""
        for path in reversed(self.paths()):
            try:
                return torch.load(path, weights_only=True, map_location="cpu")
            except Exception as error:  # torch.load raises many kinds for a damaged file
                logger.warning("%s cannot be read (%s); trying the checkpoint before it", path, error)
        return None

    def paths(self) -> list[Path]:
        """Complete checkpoints, oldest first."""
        return sorted(path for path in self.directory.glob("step-*.pt") if _NAME.fullmatch(path.name))
