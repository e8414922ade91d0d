"""The error of a module that lacks a name."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

# by package: what to use for a name that one of its modules lacks ("" if that is not known)
REASONS: dict[str, Callable[[str, str], str]] = {}


def nearest(name: str, names: Sequence[str]) -> str:
    """Returns the one of `names` that a misspelt name probably meant; "" for none."""
    import difflib  # only where something is wrong

    return next(iter(difflib.get_close_matches(name, names, 1, 0.75)), "")


def missing(module: str, name: str) -> AttributeError:
    """Returns the error for `module.name`: what to use, or the name that was probably meant."""
    return AttributeError(_Message(module, name))


@dataclass(frozen=True)
class _Message:
    """The text of the error, made when it is shown: who only asks whether a name is there drops the
    error unread, and a guess compares the name with all of the module's."""

    module: str
    name: str

    def __str__(self) -> str:
        package, hint = ".".join(self.module.split(".")[:2]), ""
        if not self.name.startswith("_"):
            if package in REASONS and (why := REASONS[package](self.module, self.name)):
                hint = f": {why}"
            elif near := nearest(self.name, dir(sys.modules[self.module])):
                hint = f"; did you mean {near}?"
        return f"module {self.module!r} has no attribute {self.name!r}{hint}"

    def __repr__(self) -> str:
        return repr(str(self))
