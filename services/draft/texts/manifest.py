"""OUT/manifest.json: what a directory of texts was made from, and what came of it. Equal runs give equal files."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from dartspec.services.common.errors import FailedPrecondition, InvalidArgument
from dartspec.services.draft.texts.store import write_whole

MANIFEST = "manifest.json"
# Parts of a manifest that a run may be continued with other values of.
_FREE = {"dartspec", "date", "result"}


def file_entry(path: Path) -> dict[str, str]:
    """A file's name and the SHA-256 of what is in it."""
    sha = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            sha.update(chunk)
    return {"file": path.name, "sha256": sha.hexdigest()}


def file_entries(paths: Iterable[Path]) -> list[dict[str, str]]:
    """`file_entry` of each."""
    return [file_entry(path) for path in paths]


def begin(directory: Path, description: Mapping[str, Any]) -> None:
    """Write the manifest of a run that begins or goes on; ``description`` has everything but "result".

    Raises InvalidArgument when the directory holds something else, naming the first difference.
    """
    if not _same(directory, description):
        directory.mkdir(parents=True, exist_ok=True)
        _write(directory / MANIFEST, {**description, "result": None})


def result(directory: Path, description: Mapping[str, Any]) -> dict[str, Any] | None:
    """The "result" of a run that is done; None when it is not. ``description`` may lack what is not known yet.

    Raises InvalidArgument as `begin` does.
    """
    return read(directory)["result"] if _same(directory, description) else None


def complete(directory: Path, description: Mapping[str, Any], result: Mapping[str, Any]) -> None:
    """Write the manifest of a run that is done."""
    _write(directory / MANIFEST, {**description, "result": result})


def read(directory: Path) -> dict[str, Any]:
    """The manifest of a directory. Raises FailedPrecondition when it is damaged."""
    path = directory / MANIFEST
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise FailedPrecondition(f"{path} cannot be read: {error}; name another --out") from error


def _same(directory: Path, description: Mapping[str, Any]) -> bool:
    """Whether the directory holds this run; False when it is empty or not there. Raises for anything else."""
    if not directory.exists() or not any(directory.iterdir()):
        return False
    if not (directory / MANIFEST).exists():
        raise InvalidArgument("--out", f"{directory} holds files but no {MANIFEST}; name an empty or a new directory")
    before, now = read(directory), json.loads(json.dumps(description))
    for key in sorted(now.keys() - _FREE):
        if before.get(key) != now[key]:
            raise InvalidArgument(
                "--out",
                f"{directory} holds texts of another run: {key} was {json.dumps(before.get(key))}, "
                f"now it is {json.dumps(now[key])}; name another directory, or the same settings to continue",
            )
    return True


def _write(path: Path, manifest: Mapping[str, Any]) -> None:
    write_whole(path, (json.dumps(manifest, indent=2, ensure_ascii=False) + "\n").encode())
