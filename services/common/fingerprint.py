"""Short names for contents, so that parts made for each other can tell."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

FINGERPRINT_LENGTH = 32


def digest(*parts: bytes) -> str:
    """Lower-case hex digest of the parts; their boundaries count."""
    sha = hashlib.sha256()
    for part in parts:
        sha.update(len(part).to_bytes(8, "little"))
        sha.update(part)
    return sha.hexdigest()[:FINGERPRINT_LENGTH]


def json_digest(value: Any, *parts: bytes) -> str:
    """Digest of a JSON value in canonical form, and of raw parts after it."""
    return digest(json.dumps(value, sort_keys=True, separators=(",", ":")).encode(), *parts)


def tokenizer_fingerprint(vocab: Mapping[str, int]) -> str:
    """Fingerprint of a vocabulary: the pairs of id and token string, added tokens included, in the order of ids.

    It names what token ids mean, which is what an n-gram index and a draft head depend on; how text is cut into
    tokens is not part of it. ``vocab`` is ``tokenizers.Tokenizer.get_vocab(with_added_tokens=True)``.
    """
    return json_digest(sorted((token_id, token) for token, token_id in vocab.items()))
