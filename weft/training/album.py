"""The pictures that a line of conversations names: files in its folder, or data within it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from weft.core.errors import FileFormatError, LimitError, UsageError, unreadable
from weft.vision.decode import MAX_BYTES
from weft.vision.uri import data_of

KINDS = ("image", "image_url")
_TEXT = '{"type": "text", "text": "..."}'
_FORM = '{"type": "image", "image": "cat.jpg"}'


class Album:
    """The pictures of one line. `listed` are those that its "images" names: they belong to parts
    that name none, in order. Paths start from `folder`, that of the file of conversations. Raises
    FileFormatError for what is no picture, LimitError for one that is too large, and names the line
    and the message."""

    def __init__(self, listed: Any, where: str, folder: Path) -> None:
        if listed is not None and not isinstance(listed, list):
            raise FileFormatError(f"{where}: images is {str(listed)[:60]!r}; expected a list")
        self._listed: Sequence[Any] = listed or ()
        self._where, self._folder, self._taken = where, folder, 0
        self.digests: list[str] = []

    def parts(self, content: Sequence[Any], where: str, shows: bool) -> str | list[dict[str, Any]]:
        """Returns the parts of a message, each picture as a path or bytes; one text if there is
        none. `shows`: the message may have pictures."""
        made = [self._part(part, f"{where}, part {i}", shows) for i, part in enumerate(content, 1)]
        if all("text" in part for part in made):
            return "".join(part["text"] for part in made)
        return made

    def check_all_taken(self) -> None:
        """Raises FileFormatError if "images" has another number than the messages have places."""
        if self._taken != len(self._listed):
            raise FileFormatError(
                f"{self._where}: images has {len(self._listed)} pictures, and the messages have "
                f"{self._taken} places for them; expected one for each"
            )

    def _part(self, part: Any, where: str, shows: bool) -> dict[str, Any]:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind == "text" and isinstance(part.get("text"), str):
            return {"type": "text", "text": part["text"]}
        if kind not in KINDS:
            raise FileFormatError(f"{where} is {str(part)[:60]!r}; expected {_TEXT} or {_FORM}")
        if not shows:
            raise FileFormatError(f"{where}: a picture in an answer; a model writes text alone")
        found = self._source(self._named(part, where), where)
        self.digests.append(hashlib.sha256(self._bytes(found, where)).hexdigest())
        return {"type": "image", "image": found}

    def _named(self, part: dict[str, Any], where: str) -> Any:
        for name in ("image", "path", "image_url", "url"):
            if (found := part.get(name)) is not None:
                return found.get("url") if isinstance(found, dict) else found
        self._taken += 1
        if self._taken > len(self._listed):
            raise FileFormatError(
                f"{where} names no picture, and images has {len(self._listed)}; expected {_FORM}"
            )
        return self._listed[self._taken - 1]

    def _source(self, named: Any, where: str) -> Path | bytes:
        if not isinstance(named, str) or not named:
            raise FileFormatError(f"{where}: the picture is {str(named)[:60]!r}; expected a path")
        if named[:5].lower() == "data:":
            try:
                return data_of(named, f"{where}: the picture")
            except UsageError as error:
                raise FileFormatError(str(error)) from None
        if "://" in named:
            raise FileFormatError(
                f"{where}: {named[:80]} is an address; weft fetches nothing: give a file"
            )
        return self._folder / named

    def _bytes(self, source: Path | bytes, where: str) -> bytes:
        if isinstance(source, bytes):
            return source
        try:
            with source.open("rb") as file:
                data = file.read(MAX_BYTES + 1)
        except (OSError, ValueError) as error:
            said = unreadable(source, error) if isinstance(error, OSError) else error
            raise FileFormatError(f"{where}: {said}") from None
        if len(data) > MAX_BYTES:
            raise LimitError(
                f"{where}: {source} is larger than the {MAX_BYTES >> 20} MiB that weft reads"
            )
        return data
