"""Pictures in requests: from each protocol's form to parts of a message, and to prompts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from weft.core.errors import FileFormatError, UsageError
from weft.serve.errors import below
from weft.serve.served import ServedDecoder
from weft.serve.wire import HttpError
from weft.vision.films import Video
from weft.vision.uri import data_of, frames_of, from_base64

MOST = 64  # pictures of a request
Part = str | dict[str, Any]  # text, or a picture


def from_url(url: Any, field: str) -> dict[str, Any]:
    """A picture as a part, from a data URI or the address of a file. Raises HttpError for other
    addresses: weft fetches nothing."""
    if isinstance(url, dict):
        url = url.get("url")
    if not isinstance(url, str):
        raise HttpError(400, 'a picture is {"url": "data:image/png;base64,..."}', field)
    if url[:5].lower() == "file:":
        return {"type": "image", "image": Path(unquote(urlsplit(url).path))}
    if url[:5].lower() != "data:":
        raise HttpError(
            400, f"{url[:80]!r} is an address, and weft fetches nothing: send the picture itself, "
            "as data:image/png;base64,...", field,
        )  # fmt: skip
    return {"type": "image", "image": _checked(data_of, url, field)}


def video_of(url: Any, field: str) -> dict[str, Any]:
    """A video as a part, from a data URI of an animated picture, or of frames with commas between
    them, or from the address of a file. Raises HttpError for other addresses."""
    options = {}
    if isinstance(url, dict):
        options = {k: v for k, v in url.items() if k in ("fps", "frames") and v is not None}
        url = url.get("url")
    if not isinstance(url, str):
        raise HttpError(400, 'a video is {"url": "data:image/gif;base64,..."}', field)
    if url[:5].lower() == "data:":
        return {"type": "video", "video": _checked(frames_of, url, field), **options}
    return {"type": "video", "video": from_url(url, field)["image"], **options}


def from_text(text: Any, field: str) -> dict[str, Any]:
    """A picture as a part, from base64. Raises HttpError."""
    if not isinstance(text, str):
        raise HttpError(400, "a picture is base64 text", field)
    return {"type": "image", "image": _checked(from_base64, text, field)}


def from_source(source: Any) -> dict[str, Any]:
    """A picture as a part, from the source of an Anthropic block. Raises HttpError."""
    given = source if isinstance(source, dict) else {}
    if given.get("type") == "base64":
        return from_text(given.get("data"), "messages")
    if given.get("type") == "url":
        return from_url(given.get("url"), "messages")
    raise HttpError(400, 'the source of an image is {"type": "base64", "media_type": "image/png", '
                    '"data": ...}', "messages")  # fmt: skip


def _checked(read: Any, text: str, field: str) -> Any:
    try:
        return read(text)
    except (UsageError, FileFormatError) as error:
        raise HttpError(400, str(error), field) from None


def content_of(parts: Sequence[Part], between: str = "\n") -> str | list[dict[str, Any]]:
    """The content of a message: text, or parts if there are pictures."""
    if all(isinstance(part, str) for part in parts):
        return between.join(part for part in parts if isinstance(part, str))
    return [{"type": "text", "text": p} if isinstance(p, str) else p for p in parts]


async def pictured_ids(model: ServedDecoder, text: str, pictures: Sequence[Any]) -> Any:
    """The prompt of a text with places for pictures. Raises HttpError."""
    if len(pictures) > MOST:
        raise HttpError(400, f"{len(pictures)} pictures; a request may have {MOST}", "messages")
    given = [_found(model.pictures, picture) for picture in pictures]

    def made() -> Any:
        return model.model.need_eyes().prompt(text, given, model.whole, False)

    try:
        return await model.pools.vectors.run(made)
    except (UsageError, FileFormatError) as error:
        raise HttpError(400, below(model.pictures, error), "messages") from None


def _found(folder: str | None, picture: Any) -> Any:
    if isinstance(picture, Video) and isinstance(picture.source, Path):
        return replace(picture, source=allowed(folder, picture.source))
    return allowed(folder, picture) if isinstance(picture, Path) else picture


def allowed(folder: str | None, picture: Path) -> Path:
    """A file that a request names as a picture. Raises HttpError for one outside the folder that
    `weft serve` was given (None: it was given none)."""
    if folder is None:
        raise HttpError(400, "this server reads no files: send the picture itself, as "
                        "data:image/png;base64,...", "messages")  # fmt: skip
    root = Path(folder).resolve()
    found = (root / str(picture).lstrip("/\\")).resolve() if not picture.is_absolute() else (
        picture.resolve())  # fmt: skip
    if not found.is_relative_to(root) or not found.is_file():
        raise HttpError(400, f"{picture.name[:80]!r} is not a file of the pictures' folder",
                        "messages")  # fmt: skip
    return found
