"""Whose files and batches are whose."""

from __future__ import annotations

import hashlib

from msgspec import UnsetType

from weft.serve.keys import ApiKey, ApiKeys

_MARK = b"weft batches: "  # so that the folder holds no digest that opens anything


class Owners:
    """Names of owners that may lie on a disk, and their keys (None: the server asks for none)."""

    def __init__(self, keys: ApiKeys | None) -> None:
        self._keys = keys

    def knows(self, owner: str | UnsetType) -> bool:
        """True if requests of this owner may be asked."""
        return self._keys is None or self._find(owner) is not None

    def key(self, owner: str | UnsetType) -> ApiKey | None:
        """The key of an owner. Raises KeyError for one who has none."""
        if self._keys is not None and (found := self._find(owner)) is None:
            raise KeyError(owner)
        return None if self._keys is None else found

    def _find(self, owner: str | UnsetType) -> ApiKey | None:
        assert self._keys is not None
        return next((key for key in self._keys.keys if owner_of(key.digest) == owner), None)

    def salt(self, owner: str | UnsetType) -> bytes:
        """Whose the requests are, as `guard.key_of` has it."""
        key = self.key(owner)
        return bytes.fromhex(str(owner)) if key is None else key.digest


def owner_of(digest: bytes) -> str:
    """The owner whose key has this digest (b"": requests without a key)."""
    return hashlib.sha256(_MARK + digest).hexdigest()
