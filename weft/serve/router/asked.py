"""The facts that a router needs about a request: its conversation, its model, its seed.

No tokenizer is needed: turns of one conversation begin with the same text. So a hash of its
beginning names the conversation, as a hash of a prompt's first page names a place in a server's
cache.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from weft.serve.anthropic.input import BILLING
from weft.serve.forms import BESIDE
from weft.serve.wire import too_much

BLOCK = 256  # characters or token ids: a prompt that is shorter shares no page worth keeping
# the fields that prompts begin with
_GIVEN = ("model", "cache_salt", "system", "instructions", "tools")
_SYSTEM = ("system", "developer")
_CHANGES = re.compile(BILLING.encode() + rb'[^"\\]*')  # a line that is another at each turn

_NAMED = re.compile(
    rb'\r\ncontent-disposition: *form-data; *name="?model"?[^\r]*\r\n(?:[^\r\n]+\r\n)*\r\n'
    rb"([^\r\n]{1,400})\r\n--",
    re.IGNORECASE,
)

# The field that holds the conversation, and the place of the seed, if the protocol has one.
WRITES: dict[str, tuple[str, tuple[str, ...]]] = {
    "/v1/chat/completions": ("messages", ("seed",)),
    "/v1/completions": ("prompt", ("seed",)),
    "/v1/responses": ("input", ("seed",)),
    "/v1/messages": ("messages", ("seed",)),
    "/api/chat": ("messages", ("options", "seed")),
    "/api/generate": ("prompt", ("options", "seed")),
}


@dataclass(frozen=True)
class RoutedRequest:
    """A request's body as passed on, its model, and a key of 32 bytes shared by all turns of its
    conversation (None: any replica will do)."""

    body: bytes
    model: str | None = None
    home: bytes | None = None


def asked_of(path: str, body: bytes, key: bytes) -> RoutedRequest:
    """The facts of a request from the client with this digest of a key (guard.key_of). If answers
    are drawn and no seed is given, it adds a seed, so that a second attempt gives the same answer.
    A body that is too large or not a JSON object is passed on unchanged: the replica reports the
    error."""
    if body.lstrip()[:1] != b"{" or too_much(body):
        return RoutedRequest(body, _model_in_form(body))
    try:
        value: dict[str, Any] = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return RoutedRequest(body)
    named = value.get("model")
    model = named if isinstance(named, str) and named else None
    if path not in WRITES:
        return RoutedRequest(body, model)
    field, seed = WRITES[path]
    seeded = _seed(value, seed)
    return RoutedRequest(
        msgspec.json.encode(value) if seeded else body, model, _home(value, value.get(field), key)
    )


def _model_in_form(body: bytes) -> str | None:
    """The model that a form names; it is before the file or after it."""
    if not body.startswith(b"--"):
        return None
    found = _NAMED.search(body[:BESIDE]) or _NAMED.search(body[-BESIDE:])
    return None if found is None else found[1].decode("utf-8", "replace")


def _seed(value: dict[str, Any], where: tuple[str, ...]) -> bool:
    """Adds a seed if there is an empty place for it; returns True if it did."""
    if not where:
        return False
    *outer, name = where
    for step in outer:
        if value.get(step) is None:
            value[step] = {}
        value = value[step]
        if not isinstance(value, dict):
            return False
    if value.get(name) is not None:
        return False
    value[name] = secrets.randbits(31)  # bits that every protocol accepts
    return True


def _home(value: Mapping[str, Any], said: Any, key: bytes) -> bytes | None:
    """A hash of what all turns begin with: everything up to the first message that is not the
    system's; of a plain prompt the first BLOCK."""
    if isinstance(said, list) and said and isinstance(said[0], str | list):
        said = said[0]  # The first prompt represents them all.
    if isinstance(said, list) and said and isinstance(said[0], dict):
        ends = (i for i, turn in enumerate(said, 1) if _role(turn) not in _SYSTEM)
        said = said[: next(ends, len(said))]
    elif isinstance(said, str | list) and len(said) >= BLOCK:
        said = said[:BLOCK]
    else:
        return None
    begins = msgspec.json.encode([[value.get(name) for name in _GIVEN], said])
    return hashlib.blake2b(key + _CHANGES.sub(b"", begins), digest_size=32).digest()


def _role(turn: Any) -> Any:
    return turn.get("role") if isinstance(turn, dict) else None
