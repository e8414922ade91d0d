"""The error of a module that lacks a name."""

from __future__ import annotations

import sys


def missing(module: str, name: str) -> AttributeError:
    """Returns the error for `module.name`, with the name that was probably meant."""
    near: list[str] = []
    if not name.startswith("_"):
        import difflib  # only where something is wrong

        near = difflib.get_close_matches(name, dir(sys.modules[module]), 1, 0.75)
    hint = f"; did you mean {near[0]}?" if near else ""
    return AttributeError(f"module {module!r} has no attribute {name!r}{hint}")
