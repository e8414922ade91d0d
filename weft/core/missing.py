"""The error of a module that lacks a name."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

# by package: what to use for a name that one of its modules lacks ("" if that is not known)
REASONS: dict[str, Callable[[str, str], str]] = {}


def nearest(name: str, names: Sequence[str]) -> str:
    """Returns the one of `names` that a misspelt name probably meant; "" for none."""
    import difflib  # only where something is wrong

    return next(iter(difflib.get_close_matches(name, names, 1, 0.75)), "")


def missing(module: str, name: str) -> AttributeError:
    """Returns the error for `module.name`: what to use, or the name that was probably meant."""
    package, hint = ".".join(module.split(".")[:2]), ""
    if not name.startswith("_"):
        if package in REASONS and (why := REASONS[package](module, name)):
            hint = f": {why}"
        elif near := nearest(name, dir(sys.modules[module])):
            hint = f"; did you mean {near}?"
    return AttributeError(f"module {module!r} has no attribute {name!r}{hint}")
