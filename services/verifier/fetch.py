"""A model or a head into a directory of its own, before anything serves it."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from dartspec.services.common.errors import FailedPrecondition
from dartspec.services.draft.convert_gguf import PACKAGED_MODEL, convert_gguf, download, packaged_gguf, resolve_model

CONFIG_FILE = "config.json"


def fetch(source: str, directory: Path, revision: str | None = None) -> bool:
    """Put the model that `resolve_model` calls ``source`` into ``directory``; false when one is there already.

    It appears there in one piece: until then the files are in a neighbour of the directory. Raises what `resolve_model`
    raises, and FailedPrecondition when the directory cannot be written or holds something else.
    """
    if (directory / CONFIG_FILE).is_file():
        return False
    path = Path(source).expanduser()
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        if source == PACKAGED_MODEL:
            convert_gguf(packaged_gguf(), directory)
        elif path.suffix == ".gguf" and path.is_file():
            convert_gguf(path, directory)
        else:
            _copy(source, directory, revision)
    except OSError as error:
        raise FailedPrecondition(
            f"{directory}: cannot be filled: {error.strerror or error}; empty it, or choose another"
        ) from error
    return True


def _copy(source: str, directory: Path, revision: str | None) -> None:
    temporary = Path(tempfile.mkdtemp(prefix=f".{directory.name}-", dir=directory.parent))
    try:
        if Path(source).expanduser().is_dir() or source.count("/") != 1:
            shutil.copytree(resolve_model(source), temporary, dirs_exist_ok=True)
        else:
            # Straight into place: weights of many gigabytes must not go through a cache that is a second copy.
            download(source, revision, temporary)
        temporary.chmod(0o755)  # others than the owner read it too
        temporary.rename(directory)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
