"""Notices: lines on stderr that a process gives once, such as which device was chosen, or which
fields of a model's files weft does not take into account."""

from __future__ import annotations

import functools
import sys
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from typing import Any

_SHOWN = 8  # names in a line


_hushed = False


def tell(line: str) -> None:
    """Writes a line to stderr. A full disk for logs, or no stderr at all, ends no work."""
    if sys.stderr is not None:
        with suppress(OSError):
            print(line, file=sys.stderr, flush=True)


@functools.lru_cache(4096)  # a server says lines for as long as it runs
def say(line: str) -> None:
    """Writes a notice to stderr, once per process."""
    if not _hushed:
        tell(f"weft: {line}")


def hush() -> None:
    """Gives no notices from here on: another process of the same work gives them."""
    global _hushed
    _hushed = True


def say_unknown(where: str, data: Mapping[str, Any], *known: Collection[str]) -> None:
    """Names the fields of `data` that none of `known` holds; a field that is null says nothing."""
    names = [k for k, v in data.items() if v is not None and not any(k in each for each in known)]
    if names:
        say(f"{where}: weft does not know {listed(names)}, which changes nothing here")


def say_unread(where: str, names: Iterable[str]) -> None:
    """Names the tensors of a graph that none of its operations reads."""
    shown = listed(names)
    if shown:
        say(f"{where}: no operation reads {shown}, which changes nothing here")


def listed(names: Iterable[str]) -> str:
    """Names for a message: a few of them, and how many more there are."""
    found = [name[:60] for name in names]
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return ", ".join(found[:_SHOWN]) + more
