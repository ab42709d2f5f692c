"""Where things lie on disk."""

from __future__ import annotations

import os
from pathlib import Path

import dartspec

BUILT_IN_MODEL = "smollm2-135m"
HEAD_FILE = "config.json"
CORPUS_FILE = "corpus.npz"


def shipped_directory(model: str) -> Path | None:
    """`models/MODEL` of the checkout that this package is run from; None elsewhere, or when there is none for it."""
    directory = Path(dartspec.__file__).resolve().parent.parent / "models" / model
    return directory if "/" not in model and directory.is_dir() else None


def cache_directory() -> Path:
    """`~/.cache/dartspec`, or under XDG_CACHE_HOME."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dartspec"
