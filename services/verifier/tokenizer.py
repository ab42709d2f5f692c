"""The tokenizer in the form in which gateways get it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dartspec.services.common.errors import FailedPrecondition
from dartspec.services.common.fingerprint import tokenizer_fingerprint

_SPECIAL = ("bos_token", "eos_token", "unk_token", "pad_token")


@dataclass(frozen=True)
class TokenizerFiles:
    """A `tokenizers` file and what the chat template needs besides."""

    json_bytes: bytes
    chat_template: str
    special_tokens: dict[str, str]
    fingerprint: str


def load_tokenizer(directory: Path) -> TokenizerFiles:
    """Read a model directory's tokenizer. Raises FailedPrecondition when it is not one of the fast kind."""
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(directory)
    except (OSError, ValueError) as error:
        raise FailedPrecondition(f"model: no tokenizer in {str(directory)!r}: {error}", field="model") from error
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise FailedPrecondition(
            f"model: the tokenizer of {str(directory)!r} has no tokenizer.json form; convert it first",
            field="model",
        )
    template = tokenizer.chat_template or ""
    if isinstance(template, dict):
        template = template.get("default", "")
    special = {name: str(getattr(tokenizer, name)) for name in _SPECIAL if getattr(tokenizer, name, None)}
    fingerprint = tokenizer_fingerprint(backend.get_vocab(with_added_tokens=True))
    return TokenizerFiles(backend.to_str().encode(), template, special, fingerprint)
