"""Messages of several parts: texts and pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from weft.core.errors import UsageError
from weft.vision.films import Video
from weft.vision.uri import frames_of


def with_places(
    messages: Sequence[Mapping[str, Any]], lists: bool = False
) -> tuple[list[dict[str, Any]], list[Any]]:
    """Returns messages as chat templates read them, with {"type": "image"} for each picture, and
    the pictures and videos in order. A part is {"type": "image", "image": ...} or {"type":
    "image_url", "image_url": a data URI}; see `vision.decode`. A video is {"type": "video",
    "video": ...}, perhaps with "fps" and "frames"; see `vision.films.Video`. With
    `lists`, texts are parts too, as templates of models that see expect them."""
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
            elif isinstance(part, Mapping) and part.get("type") in ("video", "video_url"):
                pictures.append(_video(part))
                parts.append({"type": "video"})
            elif isinstance(part, Mapping):
                parts.append(dict(part))
            else:
                raise UsageError(f"a part of a message is {str(part)[:60]}; expected a dict")
        out.append({**message, "content": parts})
    return out, pictures


def question(text: str, pictures: Sequence[Any]) -> list[dict[str, Any]]:
    """Returns the parts of a message that shows pictures and videos (`Video`), then asks."""
    parts: list[dict[str, Any]] = [
        {"type": "video", "video": one} if isinstance(one, Video) else
        {"type": "image", "image": one}
        for one in pictures
    ]  # fmt: skip
    return [*parts, {"type": "text", "text": text}]


def _video(part: Mapping[str, Any]) -> Video:
    found = next((part[k] for k in ("video", "path", "video_url", "url") if k in part), None)
    found = found.get("url") if isinstance(found, Mapping) else found
    if found is None:
        raise UsageError(
            'a video in a message is {"type": "video", "video": a folder or list of frames, or an '
            "animated picture}"
        )
    if isinstance(found, Video):
        return found
    for name, kinds in (("fps", int | float), ("frames", int)):
        value = part.get(name)
        if value is not None and (isinstance(value, bool) or not isinstance(value, kinds)):
            raise UsageError(f"{name} of a video is {value!r:.40}; expected a number")
    if isinstance(found, str) and found[:5].lower() == "data:":
        found = frames_of(found)
    elif isinstance(found, str) and "://" in found:
        raise UsageError(f"{found[:80]} is an address; weft fetches nothing: give a file")
    return Video(found, part.get("fps"), part.get("frames"))


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
