"""Sessions on a disk: the cache of a slot's last conversation, kept in a file and read again.

A file is a line that says what it is, a length, a head in JSON, planes as in memory, and a
digest of all that. Nothing in it is executed, and no size in it is believed before it is compared
with the model's own.
"""

from __future__ import annotations

import errno
import hashlib
import math
import os
import re
import struct
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct

from weft.core.errors import UsageError
from weft.engine.kept_cache import KeptCache
from weft.host.files import replacing
from weft.host.private import open_regular
from weft.serve.batches.owners import owner_of
from weft.serve.wire import HttpError

MAX_FOLDER = 10 << 30  # bytes of all files
MAX_FILES = 1000
MAX_NOTED = 1024  # slots whose last conversation is known
MAX_TOKENS = 1 << 20  # of these conversations together
_MAGIC = b"weft session 1\n"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


class Plane(Struct, forbid_unknown_fields=True, frozen=True):
    """The form of a plane of one page."""

    name: str
    dtype: str
    shape: list[int]


class Head(Struct, forbid_unknown_fields=True, frozen=True):
    """fingerprint: of the model, as answers have it."""

    fingerprint: str
    page: int
    tokens: list[int]
    planes: list[Plane]


class SlotTable:
    """The tokens of each slot's last conversation, by whose it is (a salt) and the slot's number;
    none unless it `keeps` them. Salts are the clients' own: the oldest conversations go."""

    def __init__(self, keeps: bool) -> None:
        self._keeps = keeps
        self._noted: OrderedDict[tuple[bytes, int], Any] = OrderedDict()

    def note(self, salt: bytes, slot: int, answer: Any) -> None:
        """Remembers the answer that a slot wrote last: JobOutputs, or tokens that were restored."""
        if not self._keeps:
            return
        self._noted[salt, slot] = answer
        self._noted.move_to_end((salt, slot))
        total = sum(len(_tokens_of(noted)) for noted in self._noted.values())
        while len(self._noted) > MAX_NOTED or (total > MAX_TOKENS and len(self._noted) > 1):
            total -= len(_tokens_of(self._noted.popitem(last=False)[1]))

    def tokens(self, salt: bytes, slot: int) -> list[int]:
        """The tokens in a slot; [] if none are known."""
        return [*_tokens_of(self._noted.get((salt, slot)))]

    def forget(self, salt: bytes, slot: int) -> None:
        """Forgets what a slot has."""
        self._noted.pop((salt, slot), None)


def _tokens_of(noted: Any) -> Sequence[int]:
    if noted is None or isinstance(noted, list):
        return noted or ()
    tokens: Sequence[int] = () if noted.ticket is None else noted.ticket.place.tokens
    return tokens


class SessionFolder:
    """The sessions in a folder, apart by whose they are."""

    def __init__(self, path: Path) -> None:
        self._root = path

    def path(self, owner: bytes, name: str) -> Path:
        """The place of a session of an owner (the digest of a key). Raises HttpError for a name
        that is more than a plain file's."""
        if not _NAME.fullmatch(name):
            raise HttpError(400, f"filename is {name[:80]!r}; expected a plain name of letters, "
                            "digits, '.', '_' and '-'", "filename")  # fmt: skip
        return self._root / owner_of(owner[:32]) / f"{name}.session"

    def write(self, path: Path, fingerprint: str, page: int, kept: KeptCache) -> int:
        """Writes a session, whole or not at all; the number of its bytes. Raises HttpError where
        too many are kept, OSError where the disk does not take it."""
        head = msgspec.json.encode(Head(fingerprint, page, [*kept.tokens], _forms(kept)))
        size = sum(plane.nbytes for plane in kept.planes.values()) + len(head)
        there = [one.lstat().st_size for one in self._root.glob("*/*.session")]
        if sum(there) + size > MAX_FOLDER or len(there) >= MAX_FILES:
            raise HttpError(507, f"{len(there)} sessions are kept, as much as may be; remove some")
        digest = hashlib.blake2b(digest_size=32)
        path.parent.mkdir(0o700, exist_ok=True)
        with replacing(path, private=True) as new, new.open("wb") as file:
            for part in (_MAGIC, struct.pack("<Q", len(head)), head):
                digest.update(part)
                file.write(part)
            for plane in kept.planes.values():
                data = np.ascontiguousarray(plane).view(np.uint8).reshape(-1).data
                digest.update(data)
                file.write(data)
            file.write(digest.digest())
        return path.stat().st_size

    def read(
        self, path: Path, fingerprint: str, page: int, context: int, empty: KeptCache
    ) -> tuple[KeptCache, int]:
        """The session in a file, and its bytes. `empty`: the planes of no page of the model. Raises
        HttpError for one that is missing, damaged, or of another model."""
        try:
            with open_regular(path, own=True) as file:
                size = os.fstat(file.fileno()).st_size
                return self._parsed(file, size, fingerprint, page, context, empty), size
        except OSError as e:
            if e.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                raise HttpError(404, "there is no such session", "filename") from None
            said = f"the session cannot be read: {e.strerror or e}"
            raise HttpError(400, said, "filename") from None
        except (ValueError, struct.error, msgspec.DecodeError, RecursionError) as e:
            raise HttpError(400, f"the session is damaged: {e}", "filename") from None

    def _parsed(
        self, file: Any, size: int, fingerprint: str, page: int, context: int, empty: KeptCache
    ) -> KeptCache:
        digest = hashlib.blake2b(digest_size=32)

        def take(count: int) -> bytearray:
            data = bytearray(count)
            if file.readinto(data) != count:
                raise ValueError("its end is missing")
            digest.update(data)
            return data

        if bytes(take(len(_MAGIC))) != _MAGIC:
            raise ValueError("it does not begin as one")
        (length,) = struct.unpack("<Q", take(8))
        if length > (1 << 16) + 16 * context:
            raise ValueError("its head is too long")
        head = msgspec.json.decode(take(length), type=Head)
        if head.fingerprint != fingerprint or head.page != page:
            said = f"the session is of {head.fingerprint[:40]}; this model is {fingerprint}"
            raise HttpError(400, said, "filename")
        count = len(head.tokens) // page
        if len(head.tokens) % page or len(head.tokens) > context or head.planes != _forms(empty):
            raise ValueError("its head is not of this model")
        sizes = [math.prod(one.shape) * np.dtype(one.dtype).itemsize for one in head.planes]
        if file.tell() + count * sum(sizes) + digest.digest_size != size:
            raise ValueError("it has another length than its head says")
        planes = {}
        for one, each in zip(head.planes, sizes):
            data = np.frombuffer(take(count * each), np.dtype(one.dtype))
            planes[one.name] = data.reshape(count, *one.shape)
        if file.read(digest.digest_size + 1) != digest.digest():
            raise ValueError("its digest is another")
        return KeptCache(tuple(head.tokens), planes)


def _forms(kept: KeptCache) -> list[Plane]:
    return [Plane(n, str(p.dtype), [*p.shape[1:]]) for n, p in kept.planes.items()]


def open_sessions(path: str | None) -> SessionFolder | None:
    """The folder of sessions, made if it is missing (None: none). Raises UsageError."""
    if path is None:
        return None
    try:
        Path(path).mkdir(0o700, parents=True, exist_ok=True)
    except OSError as e:
        raise UsageError(f"--slot-save-path {path}: {e.strerror}") from None
    return SessionFolder(Path(path))
