"""Writing files so that a reader never meets half of one."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def replacing(path: str | os.PathLike[str], private: bool = False) -> Iterator[Path]:
    """Yields a temporary path beside `path`; on success it takes `path`'s place in one step.

    If the block raises (an interrupt too), the temporary file is removed and whatever `path` held
    stays as it was. A `private` file is readable by its owner only, else by whom the umask allows.
    """
    import tempfile  # takes milliseconds, which who only reads should not pay

    target = Path(path)
    try:
        handle, name = tempfile.mkstemp(prefix=f".{target.name[:40]}.", dir=target.parent)
    except OSError as e:  # named after what the caller knows, not after the temporary file
        raise OSError(e.errno, e.strerror, str(target)) from None
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        if not private:  # mkstemp makes private files
            umask = os.umask(0)
            os.umask(umask)
            temporary.chmod(0o666 & ~umask)
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


def write_json(path: str | os.PathLike[str], data: Mapping[str, Any]) -> None:
    """`data` as indented JSON, whole or not at all."""
    with replacing(path) as temporary:
        temporary.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")


def default_directory() -> Path | None:
    """Where weft keeps what it can make again: WEFT_CACHE, or the user's cache directory for weft;
    None when WEFT_CACHE is empty or "0" (nothing is kept) or there is no home directory."""
    chosen = os.environ.get("WEFT_CACHE")
    if chosen is not None:
        return Path(chosen) if chosen not in ("", "0") else None
    try:
        home = Path.home()
    except RuntimeError:
        return None
    if sys.platform == "darwin":
        return home / "Library" / "Caches" / "weft"
    if os.name == "nt":
        return Path(os.environ.get("LOCALAPPDATA", home / "AppData" / "Local")) / "weft" / "cache"
    return Path(os.environ.get("XDG_CACHE_HOME") or home / ".cache") / "weft"
