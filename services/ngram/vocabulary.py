"""The tokenizer that an index belongs to: how many ids there are and what they are called."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dartspec.services.common.errors import InvalidArgument, NotFound
from dartspec.services.common.fingerprint import tokenizer_fingerprint
from dartspec.services.ngram.config import TokenSettings


@dataclass(frozen=True)
class Vocabulary:
    """Ids are below ``size``; ``fingerprint`` names what they mean."""

    size: int
    fingerprint: str


def vocabulary(settings: TokenSettings) -> Vocabulary:
    """From the settings, or from the tokenizer file that they name. Raises InvalidArgument naming what is missing."""
    if not settings.tokenizer:
        if not settings.vocab_size:
            raise InvalidArgument("--vocab-size", "must be given when there is no --tokenizer")
        if not settings.fingerprint:
            raise InvalidArgument("--fingerprint", "must be given when there is no --tokenizer")
        return Vocabulary(settings.vocab_size, settings.fingerprint)
    found = read_tokenizer(Path(settings.tokenizer))
    if settings.fingerprint not in ("", found.fingerprint):
        message = (
            f"{settings.tokenizer} has fingerprint {found.fingerprint}, not {settings.fingerprint}; give one of them"
        )
        raise InvalidArgument("--fingerprint", message)
    if settings.vocab_size and settings.vocab_size < found.size:
        message = f"{settings.tokenizer} has ids up to {found.size - 1}, got {settings.vocab_size}"
        raise InvalidArgument("--vocab-size", message)
    return Vocabulary(settings.vocab_size or found.size, found.fingerprint)


def read_tokenizer(path: Path) -> Vocabulary:
    """From a tokenizer.json, or a directory that holds one."""
    from tokenizers import Tokenizer

    file = path / "tokenizer.json" if path.is_dir() else path
    if not file.is_file():
        raise NotFound(f"--tokenizer: {file} does not exist", field="--tokenizer")
    try:
        vocab = Tokenizer.from_file(str(file)).get_vocab(with_added_tokens=True)
    except Exception as error:  # the library raises plain Exception
        raise InvalidArgument("--tokenizer", f"{file} is not a tokenizer.json: {error}") from error
    return Vocabulary(max(vocab.values(), default=-1) + 1, tokenizer_fingerprint(vocab))
