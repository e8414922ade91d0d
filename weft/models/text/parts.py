"""Messages of several parts: texts and pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from weft.core.errors import UsageError


def with_places(
    messages: Sequence[Mapping[str, Any]], lists: bool = False
) -> tuple[list[dict[str, Any]], list[Any]]:
    """Returns messages as chat templates read them, with {"type": "image"} for each picture, and
    the pictures in order. A part is {"type": "image", "image": ...} or {"type": "image_url",
    "image_url": a data URI}; see `vision.decode`. With `lists`, texts are parts too, as templates
    of models that see expect them."""
    out: list[dict[str, Any]] = []
    pictures: list[Any] = []
    for message in messages:
        content = message.get("content") if isinstance(message, Mapping) else None
        if lists and isinstance(content, str):
            content = [{"type": "text", "text": content}]
        if not isinstance(content, list | tuple):
            out.append(dict(message) if isinstance(message, Mapping) else message)
            continue
        parts = []
        for part in content:
            if isinstance(part, Mapping) and part.get("type") in ("image", "image_url"):
                pictures.append(_picture(part))
                parts.append({"type": "image"})
            elif isinstance(part, Mapping):
                parts.append(dict(part))
            else:
                raise UsageError(f"a part of a message is {str(part)[:60]}; expected a dict")
        out.append({**message, "content": parts})
    return out, pictures


def _picture(part: Mapping[str, Any]) -> Any:
    for name in ("image", "path", "image_url", "url"):
        if (found := part.get(name)) is not None:
            found = found.get("url") if isinstance(found, Mapping) else found
            if isinstance(found, str) and found.startswith("data:"):
                from weft.vision.uri import data_of

                return data_of(found)
            if isinstance(found, str) and "://" in found:
                raise UsageError(f"{found[:80]} is an address; weft fetches nothing: give a file")
            return found
    raise UsageError('a picture in a message is {"type": "image", "image": path, bytes or array}')
