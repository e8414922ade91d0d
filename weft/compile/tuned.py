"""Tuning tables: which configuration of a template was fastest for a class of shapes on a device.

`weft tune` writes a table, compiling reads it; nothing is ever measured when a program starts. A
table is a JSON file: in weft's cache directory, named after the device's Caps, or WEFT_TUNING=FILE
("" or "0": none). It holds for the Caps and for the templates it was measured with; another one is
left aside, with a line on stderr that says so.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from weft.core import versions
from weft.core.caps import Caps
from weft.core.errors import FileFormatError, UsageError
from weft.core.hints import command
from weft.core.notices import say
from weft.core.records import dataclass
from weft.host.files import default_directory, write_text
from weft.host.private import make_private, read_regular

FORMAT = 1
_MOST_BYTES = 4 << 20
_MOST_TEXT = 200  # characters of a name in a table

Config = Mapping[str, int | bool | str]
Key = tuple[str, str]  # kind of template, class of shape


@dataclass(frozen=True)
class TunedRow:
    """The fastest configuration of a class (empty: the template's default), and milliseconds."""

    config: Config
    ms: float
    default_ms: float


@dataclass(frozen=True)
class TunedTable:
    """Rows by (kind, class of shape); `device` is the name of the hardware they were measured on,
    `caps` and `code` are digests of its Caps and of the templates."""

    device: str
    caps: str
    code: str
    rows: Mapping[Key, TunedRow]
    digest: str = ""  # the digest of the file


def new(device: str, caps: Caps) -> TunedTable:
    """An empty table for a device and the templates as they are."""
    return TunedTable(device, caps_digest(caps), versions.digest("tuning"), {})


@functools.lru_cache(maxsize=32)
def caps_digest(caps: Caps) -> str:
    """16 hex digits: equal for Caps that templates cannot tell apart (a library of the vendor's is
    nothing to them, and models are compiled without it)."""
    return hashlib.sha256(caps.without("gemm_library").text().encode()).hexdigest()[:16]


def default_path(caps: Caps) -> Path | None:
    """Returns the path of the table for these Caps, or None where nothing is kept."""
    folder = default_directory()
    return None if folder is None else folder / f"tuned-{caps_digest(caps)}.json"


# -- reading --------------------------------------------------------------------------------------


def active(caps: Caps) -> TunedTable | None:
    """Returns the table that the compiler uses for these Caps, or None.

    Raises UsageError when the file that WEFT_TUNING names cannot be read, and FileFormatError when
    it is not a table. weft ignores a broken table in the cache directory and prints a line on
    stderr.
    """
    named = os.environ.get("WEFT_TUNING")
    if named is not None:
        if named in ("", "0"):
            return None
        try:
            return _fitting(_load(named), caps, f"WEFT_TUNING={named}", named)
        except OSError as error:
            raise UsageError(f"WEFT_TUNING={named}: {error.strerror or error}") from None
    path = default_path(caps)
    try:
        return None if path is None else _fitting(_load(str(path)), caps, str(path))
    except OSError:
        return None  # the file does not exist
    except FileFormatError as error:
        say(f"{error}; it is not used; to replace it: {_again(caps)}")
        return None


def writable() -> bool:
    """True if the compiler reads the table in the cache directory: no variable says otherwise."""
    return os.environ.get("WEFT_TUNING") is None


def digest(caps: Caps) -> str:
    """Names the active table: what was compiled with another one is not the same. "": none."""
    table = active(caps)
    return "" if table is None else table.digest


def _load(path: str) -> TunedTable:
    status = os.stat(path)
    return _read(path, status.st_mtime_ns, status.st_size)


@functools.lru_cache(maxsize=8)
def _read(path: str, mtime: int, size: int) -> TunedTable:
    return read(path)


def _again(caps: Caps, out: str | None = None) -> str:
    """Returns the command that repeats the measurement, into the file `out` if the user named
    one."""
    file = [] if out is None else ["--output", out]
    return command("tune", "--device", caps.name.partition("-")[0], *file)


def _fitting(
    table: TunedTable, caps: Caps, where: str, out: str | None = None
) -> TunedTable | None:
    target = caps.model or caps.name
    if table.caps != caps_digest(caps):
        say(f"{where}: measured on {table.device} with other limits, not used for {target} here")
    elif table.code != versions.digest("tuning"):
        say(f"{where}: measured with other templates, not used; again: {_again(caps, out)}")
    else:
        return table
    return None


def read(path: str | os.PathLike[str]) -> TunedTable:
    """The table in a file. Raises OSError, or FileFormatError for anything but a table."""
    if os.stat(path).st_size > _MOST_BYTES:
        raise FileFormatError(f"{path}: no tuning table is larger than {_MOST_BYTES >> 20} MiB")
    raw = read_regular(path, _MOST_BYTES)
    try:
        data = json.loads(raw)
        _want(isinstance(data, dict) and data.get("weft") == "tuning", "it is another file")
        _want(data.get("format") == FORMAT, f"its format is not {FORMAT}")
        device, caps, code = (_text(data.get(key), key) for key in ("device", "caps", "code"))
        _want(isinstance(data.get("rows"), list), '"rows" is not a list')
        rows = dict(_row(entry) for entry in data["rows"])
    except (ValueError, RecursionError) as error:  # our own errors, and those of JSON and UTF-8
        raise FileFormatError(f"{path} is not a tuning table: {error}") from None
    return TunedTable(device, caps, code, rows, hashlib.sha256(raw).hexdigest()[:16])


def _want(condition: bool, why: str) -> None:
    if not condition:
        raise ValueError(why)


def _text(value: Any, what: str) -> str:
    _want(isinstance(value, str) and len(value) <= _MOST_TEXT, f'"{what}" is not a short text')
    return str(value)


def _row(entry: Any) -> tuple[Key, TunedRow]:
    _want(isinstance(entry, dict), "a row is not an object")
    config = entry.get("config")
    _want(isinstance(config, dict) and len(config) <= 32, 'a row\'s "config" is not an object')
    for key, value in config.items():
        small = isinstance(value, int) and abs(value) < 1 << 31
        short = isinstance(value, str) and len(value) <= _MOST_TEXT
        _want(len(key) <= _MOST_TEXT and (small or short), f"{key[:40]!r} of a row is no setting")
    times = [entry.get("ms"), entry.get("default_ms")]
    for ms in times:
        number = isinstance(ms, int | float) and not isinstance(ms, bool)
        _want(number and 0 <= ms < 1e9, "a row's time is not a number")
    key = (_text(entry.get("kind"), "kind"), _text(entry.get("class"), "class"))
    return key, TunedRow(config, float(times[0]), float(times[1]))


# -- writing --------------------------------------------------------------------------------------


def write(path: str | os.PathLike[str], table: TunedTable) -> None:
    """Writes a table, whole or not at all. Raises OSError."""
    rows = [
        {"kind": kind, "class": of, "config": dict(row.config), "ms": row.ms,
         "default_ms": row.default_ms}
        for (kind, of), row in sorted(table.rows.items())
    ]  # fmt: skip
    data = {
        "weft": "tuning", "format": FORMAT, "device": table.device, "caps": table.caps,
        "code": table.code, "rows": rows,
    }  # fmt: skip
    make_private(Path(path).parent)
    write_text(path, json.dumps(data, indent=1) + "\n")
