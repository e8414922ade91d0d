"""Files that commands which listen read: their options, and the keys of their clients."""

from __future__ import annotations

import difflib
import stat
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from weft.core.errors import UsageError
from weft.core.text import first_line

if TYPE_CHECKING:
    from weft.serve.keys import ApiKey


CONFIG = "weft.config"  # of a context's `meta`: the path of the configuration file


def read_config(ctx: click.Context, param: click.Parameter, path: str | None) -> None:
    """Takes the options of a TOML file as defaults. Raises UsageError for one that the command
    lacks."""
    if path is None:
        return
    ctx.meta[CONFIG] = path
    known = {p.name: p for p in ctx.command.params if p is not param}
    given = {}
    for name, value in read_toml(path).items():
        option = name.replace("-", "_")
        if option not in known:
            near = difflib.get_close_matches(option, map(str, known), 1)
            hint = f"; did you mean {near[0].replace('_', '-')}?" if near else ""
            raise UsageError(f"{path}: {ctx.command.name} lacks an option {name!r:.60}{hint}")
        if expected := _mismatch(known[option], value):
            raise UsageError(f"{path}: {name} is {str(value)[:60]}; expected {expected}")
        given[option] = value if isinstance(value, list | bool) else str(value)
    ctx.default_map = {**(ctx.default_map or {}), **given}


def _mismatch(option: click.Parameter, value: Any) -> str:
    """Returns the form of TOML that an option takes in place of `value`; "" if `value` has it."""
    if option.multiple or option.nargs == -1:
        ok = isinstance(value, list) and all(isinstance(one, str) for one in value)
        return "" if ok else "a list of texts"
    if getattr(option, "is_flag", False):
        return "" if isinstance(value, bool) else "one value: true or false"
    ok = isinstance(value, str | int | float) and not isinstance(value, bool)
    return "" if ok else "one value: a text or a number"


def read_toml(path: str) -> dict[str, Any]:
    """The content of a TOML file. Raises UsageError."""
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as e:
        raise UsageError(f"{path}: {e.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as e:
        raise UsageError(f"{path} is not TOML: {first_line(e)}") from None


def read_key(path: str | None, option: str = "--api-key-file") -> bytes | None:
    """The key in the first line of the file that an option names. Raises UsageError for one that is
    short, or that others can read."""
    if path is None:
        return None
    check_private(path, option)
    return checked_key(Path(path).read_bytes().split(b"\n", 1)[0], f"{path}: its first line")


def check_private(path: str, option: str) -> None:
    """Raises UsageError for a file that cannot be read, or that others can read too."""
    try:
        mode = Path(path).stat().st_mode
        Path(path).open("rb").close()
    except OSError as e:
        raise UsageError(f"{option} {path}: {e.strerror}") from None
    if stat.S_IMODE(mode) & 0o077:
        raise UsageError(f"other users can read {path}; run: chmod 600 {path}")


def checked_key(key: bytes, where: str) -> bytes:
    """The key without spaces around it. Raises UsageError for one that is short."""
    key = key.strip()
    if len(key) < 16 or not key.isascii():
        raise UsageError(f"{where} has to be a key of at least 16 ASCII characters")
    return key


_KINDS: dict[type, str] = {
    str: "a text", bool: "true or false", int: "an integer", float: "a number", list: "a list",
    dict: "a table",
}  # fmt: skip


def read_keys(path: str | None) -> list[ApiKey]:
    """The keys of a TOML file: one table per name, with `key` and limits. Raises UsageError."""
    from weft.serve.keys import ApiKey, KeyLimits

    if path is None:
        return []
    check_private(path, "--keys-file")
    made = []
    for name, table in read_toml(path).items():
        if not isinstance(table, dict):  # the value may be a secret, so that only its type is said
            raise UsageError(f"{path}: {name!r:.60} is {_KINDS.get(type(table), 'a date')}; "
                             f"write a table [{name:.60}] with key")  # fmt: skip
        fields = dict(table)
        secret = fields.pop("key", None)
        if secret is None:
            raise UsageError(
                f"{path}: {name!r:.60} lacks a key; write a table [{name:.60}] with key"
            )
        if not isinstance(secret, str):
            found = _KINDS.get(type(secret), "a date")
            raise UsageError(
                f"{path}: the key of {name!r:.60} is {found}; expected a text in quotes"
            )
        key = checked_key(secret.encode(), f"{path}: the key of {name!r:.60}")
        for field, value in fields.items():
            if field not in KeyLimits.__dataclass_fields__:
                known = ", ".join(["key", *KeyLimits.__dataclass_fields__])
                raise UsageError(f"{path}: {name:.60} has {field!r:.60}; known are {known}")
            if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 1 << 53:
                found = f"{field} of {name:.60} is {value!r:.40}"
                raise UsageError(f"{path}: {found}; expected a whole number above 0")
        made.append(ApiKey(name, key, KeyLimits(**fields)))
    if not made:  # an emptied file must not open the server to all
        raise UsageError(f"{path} has no keys; write a table [NAME] with key")
    if len({key.digest for key in made}) < len(made):
        raise UsageError(f"{path}: two names have the same key")
    return made
