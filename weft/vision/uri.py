"""Pictures within text: base64, and data URIs of it."""

from __future__ import annotations

import base64
import binascii
import re

from weft.core.errors import FileFormatError, LimitError, UsageError
from weft.vision.decode import MAX_BYTES

_URI = re.compile(r"data:(?P<kind>[^;,]{0,100})(?:;[^;,]{0,100}){0,8};base64,", re.I)


def data_of(uri: str, where: str = "the picture") -> bytes:
    """Returns the bytes in a data URI. Raises UsageError for one that is not base64, and the errors
    of `from_base64`."""
    found = _URI.match(uri)
    if found is None:
        raise UsageError(f"{where} is {uri[:40]!r}...; expected data:image/png;base64,...")
    return from_base64(uri[found.end() :], where)


def frames_of(uri: str, where: str = "the video") -> bytes | list[bytes]:
    """Returns the bytes of a video in a data URI, or those of its frames if it has several parts
    with commas between them, as vLLM takes JPEG frames. Raises what `data_of` raises."""
    found = _URI.match(uri)
    if found is None or "," not in uri[found.end() :]:
        return data_of(uri, where)
    if len(uri) > MAX_BYTES * 4 // 3:
        raise LimitError(f"{where} is larger than {MAX_BYTES >> 20} MiB, as weft reads videos")
    return [from_base64(part, where) for part in uri[found.end() :].split(",")]


def from_base64(text: str, where: str = "the picture") -> bytes:
    """Returns the bytes that base64 says. Raises FileFormatError for text that is not base64,
    LimitError for too much of it."""
    if len(text) > MAX_BYTES * 4 // 3 + 4:
        raise LimitError(f"{where} is larger than {MAX_BYTES >> 20} MiB, as weft reads pictures")
    try:
        return base64.b64decode("".join(text.split()), validate=True)
    except (binascii.Error, ValueError):
        raise FileFormatError(f"{where} is not valid base64") from None
