"""Who may ask: the keys of a file, "name:key" a line."""

from __future__ import annotations

import hmac
from hashlib import sha256
from pathlib import Path

from dartspec.services.common.errors import InvalidArgument, Unauthenticated

SETTING = "--api-keys-file"
SCHEME = "bearer"


class ApiKeys:
    """Known keys; without any, everybody may ask and nobody has a name."""

    def __init__(self, keys: dict[str, str]) -> None:
        """``keys`` by name."""
        # Hashes have one length, so a comparison says nothing about that of a key.
        self._hashes = {name: _hash(key) for name, key in keys.items()}

    @classmethod
    def read(cls, path: str) -> ApiKeys:
        """The keys of a file; lines that are empty or begin with # are skipped. No keys for an empty path.

        Raises InvalidArgument for a file that cannot be read, holds no key or a line that is none; keys are not quoted.
        """
        if not path:
            return cls({})
        try:
            lines = Path(path).read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidArgument(SETTING, f"cannot read {path}: {error}") from error
        keys: dict[str, str] = {}
        for number, line in enumerate(map(str.strip, lines), start=1):
            if not line or line.startswith("#"):
                continue
            name, _, key = (part.strip() for part in line.partition(":"))
            if not name or not key or not key.isascii() or " " in key:
                raise InvalidArgument(SETTING, f"{path}, line {number}: must be name:key, the key without spaces")
            if name in keys or key in keys.values():
                raise InvalidArgument(SETTING, f"{path}, line {number}: the name or the key is there already")
            keys[name] = key
        if not keys:
            raise InvalidArgument(SETTING, f"{path} holds no key; a line is name:key")
        return cls(keys)

    def client(self, authorization: str) -> str:
        """The name that belongs to an authorization header, "Bearer KEY"; empty when no keys are wanted.

        Raises Unauthenticated.
        """
        if not self._hashes:
            return ""
        scheme, _, key = authorization.partition(" ")
        if scheme.lower() != SCHEME or not key.strip():
            raise Unauthenticated("an API key is needed: send it as 'authorization: Bearer KEY'")
        given, found = _hash(key.strip()), ""
        for name, known in self._hashes.items():
            if hmac.compare_digest(given, known):
                found = name  # and on through the rest: the time says nothing about which one it was
        if not found:
            raise Unauthenticated("the API key is not known here")
        return found


def _hash(key: str) -> bytes:
    return sha256(key.encode(errors="surrogateescape")).digest()
