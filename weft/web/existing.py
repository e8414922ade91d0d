"""The check of what exists at the place of a new page."""

from __future__ import annotations

import os
import re
from pathlib import Path

from weft.core.errors import FileFormatError, UsageError
from weft.importers.hf_config import read_object

_MANIFEST = 1 << 26  # bytes of a manifest that is read
_ITS = re.compile(  # names of what is in a page, of this weft and of others
    r"manifest\.json|package\.json|index\.html|weights-\d+\.bin|[\w-]+\.(js|mjs|css|d\.ts)"
    r"|icon\.svg|LICENSE|NOTICE|model-.*|search|lora|scratch"
)


def check_page(out: Path) -> None:
    """Raises UsageError where something else than a page is at `out`: what is there goes when a
    page takes its place. A file manifest.json alone says little: many web pages have one."""
    if out.is_dir() and next(out.iterdir(), None) is None:
        return
    if not out.is_dir():
        if os.path.lexists(out):
            raise UsageError(f"{out} is there and is not a folder: name another folder")
        return
    try:
        said = read_object(out / "manifest.json", _MANIFEST)
    except (FileFormatError, UsageError, OSError):
        said = {}
    files, shards = said.get("files"), said.get("shards")
    if not (isinstance(files, dict) and isinstance(shards, list) and "format" in said):
        raise UsageError(f"{out} is there and is not a page of weft's: name another folder")
    its = {*files, *map(str, said.get("models") or ())}
    others = [p.name for p in out.iterdir() if p.name not in its and not _ITS.fullmatch(p.name)]
    if others:
        raise UsageError(f"{out} holds {min(others)!r:.100}, which a new page would take away: "
                         "move it, or name another folder")  # fmt: skip
