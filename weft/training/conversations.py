"""Conversations for training: files of JSON lines, checked message by message.

A line is {"messages": [{"role": ..., "content": ...}, ...]}, with "tools" if the template takes
them. A content may have parts, texts and pictures; "images" may name the pictures of a line. Only
the files' contents matter: two machines with the same files train on the same conversations.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from weft.core.errors import FileFormatError, UsageError, unreadable
from weft.importers.hf_config import parse_json
from weft.training.album import Album
from weft.training.corpus import MAX_FILE, find_files

SUFFIX = ".jsonl"
ROLES = ("system", "developer", "user", "assistant", "tool")
SAYS = "assistant"  # the role whose messages the model learns
INERT = {"id", "source", "metadata"}  # keys of a line that have no effect


@dataclass(frozen=True)
class Conversation:
    """One line of a file. `said` has a flag per message: True if the model learns to say it."""

    where: str  # file and line
    messages: tuple[dict[str, Any], ...]
    said: tuple[bool, ...]
    tools: list[Any] | None = None
    pictures: tuple[str, ...] = ()  # digests of the files of its pictures, in order

    def digest(self) -> bytes:
        """Returns a hash of the content, independent of file and line."""
        said = [self.messages, self.said, self.tools, *self.pictures]
        content = json.dumps(said, sort_keys=True, default=lambda picture: "")
        return hashlib.sha256(content.encode("utf-8", "surrogatepass")).digest()


@dataclass(frozen=True)
class Conversations:
    """The conversations of a run. `unused` names the keys of lines that nothing reads."""

    train: tuple[Conversation, ...]
    held_out: tuple[Conversation, ...]
    unused: tuple[str, ...]
    digest: str  # digest of both parts


def read_conversations(
    paths: Sequence[str], held_out: Sequence[str], exclude: Sequence[str], holdout: float,
    base: Path,
) -> Conversations:  # fmt: skip
    """Reads the files under `paths` (files, folders or patterns; relative ones to `base`).

    The conversations of `held_out` are kept for evaluation. Without it, the share `holdout` is,
    chosen by a hash of the content; equal conversations stay together. Raises UsageError for a path
    without files, FileFormatError for a line that is not a conversation.
    """
    unused: set[str] = set()
    found = _read(paths, exclude, base, unused)
    if held_out:
        train, held = found, _read(held_out, exclude, base, unused)
    else:
        train, held = _split(found, holdout)
    digest = hashlib.sha256()
    for part in (train, held):
        for one in part:
            digest.update(one.digest())
        digest.update(b"|")
    return Conversations(tuple(train), tuple(held), tuple(sorted(unused)), digest.hexdigest())


def _read(
    paths: Sequence[str], exclude: Sequence[str], base: Path, unused: set[str]
) -> list[Conversation]:
    out: list[Conversation] = []
    for path in paths:
        found = list(find_files(path, (SUFFIX,), exclude, base))
        if not found:
            raise UsageError(
                f"conversations {path}: no file ending in {SUFFIX} is there; check the path and "
                "[data] exclude"
            )
        for name, file in found:
            out += _read_file(name, file, unused)
    return out


def _read_file(name: str, file: Path, unused: set[str]) -> list[Conversation]:
    try:
        with file.open("rb") as f:
            data = f.read(MAX_FILE + 1)
    except OSError as error:
        raise unreadable(file, error) from None
    if len(data) > MAX_FILE:
        raise FileFormatError(f"{file}: split it into files of at most {MAX_FILE} bytes")
    lines = [(n, line) for n, line in enumerate(data.split(b"\n"), 1) if line.strip()]
    if not lines:
        raise FileFormatError(f"{file} holds no conversation; expected a JSON object per line")
    return [_conversation(parse_json(line, at), at, unused, file.parent) for n, line in lines
            for at in [f"{name} line {n}"]]  # fmt: skip


def _conversation(raw: Any, where: str, unused: set[str], folder: Path) -> Conversation:
    if not isinstance(raw, dict) or "messages" not in raw:
        what = f"an object with {', '.join(sorted(raw))[:60] or 'no keys'}" if isinstance(
            raw, dict) else type(raw).__name__  # fmt: skip
        raise FileFormatError(
            f'{where}: {what}; expected {{"messages": [{{"role": "user", "content": "..."}}, ...]}}'
        )
    messages, tools = raw["messages"], raw.get("tools")
    unused |= raw.keys() - {"messages", "tools", "images"} - INERT
    if not isinstance(messages, list) or not messages:
        raise FileFormatError(
            f"{where}: messages is {_kind(messages)}; expected a list of messages"
        )
    if tools is not None and not isinstance(tools, list):
        raise FileFormatError(f"{where}: tools is {_kind(tools)}; expected a list of tools")
    album = Album(raw.get("images"), where, folder)
    pairs = [_message(m, f"{where}: message {i}", album) for i, m in enumerate(messages, 1)]
    album.check_all_taken()
    said = tuple(counts for _, counts in pairs)
    if not any(said):
        raise FileFormatError(
            f"{where}: no message of the {SAYS} counts, so there is nothing to learn; add one, or "
            "remove the line"
        )
    if messages[-1]["role"] != SAYS:
        raise FileFormatError(
            f"{where}: the last message is the {messages[-1]['role']}'s; expected the {SAYS}'s"
        )
    return Conversation(where, tuple(m for m, _ in pairs), said, tools, tuple(album.digests))


def _message(raw: Any, where: str, album: Album) -> tuple[dict[str, Any], bool]:
    """Returns the message as the template gets it, and True if the model learns to say it."""
    if not isinstance(raw, dict):
        raise FileFormatError(f"{where} is {_kind(raw)}; expected an object with role and content")
    role = raw.get("role")
    if role is None:
        raise FileFormatError(f"{where} lacks a role; expected one of {', '.join(ROLES)}")
    if not isinstance(role, str) or role not in ROLES:
        raise FileFormatError(
            f"{where}: role is {_shown(role)}; expected one of {', '.join(ROLES)}"
        )
    content = raw.get("content")
    calls = role == SAYS and bool(raw.get("tool_calls"))
    if isinstance(content, list) and content:
        content = album.parts(content, where, role != SAYS)
        raw = {**raw, "content": content}
    elif not isinstance(content, str) and not (content is None and calls):
        what = _kind(content) if "content" in raw else "missing"
        raise FileFormatError(f"{where}: content is {what}; expected text, or a list of parts")
    weight = raw.get("weight", 1)
    if type(weight) is not int or weight not in (0, 1) or ("weight" in raw and role != SAYS):
        raise FileFormatError(
            f"{where}: weight is {_shown(weight)}; expected 0 or 1, in a message of the {SAYS}"
        )
    return {k: v for k, v in raw.items() if k != "weight"}, role == SAYS and weight == 1


def _kind(value: Any) -> str:
    return "empty" if value in ([], {}, "") else "null" if value is None else type(value).__name__


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _split(
    found: list[Conversation], share: float
) -> tuple[list[Conversation], list[Conversation]]:
    """Returns (training part, held-out part): at least one conversation each, if two are
    distinct."""
    kinds = sorted({one.digest() for one in found})
    if not share or len(kinds) < 2:
        return found, []
    held = set(kinds[: max(round(len(kinds) * share), 1)])
    apart: tuple[list[Conversation], list[Conversation]] = ([], [])
    for one in found:
        apart[one.digest() in held].append(one)
    return apart


def texts_of(found: Sequence[Conversation]) -> list[str]:
    """Returns the texts of the messages, for a new tokenizer."""
    said = [m["content"] for one in found for m in one.messages if m.get("content")]
    parts = [[{"text": c}] if isinstance(c, str) else c for c in said]
    return [part["text"] for each in parts for part in each if "text" in part]
