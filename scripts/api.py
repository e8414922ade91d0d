"""Writes the API reference as HTML, from the docstrings: python scripts/api.py FOLDER

Needs pdoc (the extra `docs`). Whatever pdoc warns of is an error, and so is a public name without a
docstring.
"""

from __future__ import annotations

import inspect
import re
import sys
import types
import warnings
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

MODULES = (  # by the names that they have for pdoc, too
    "weft", "weft.nn", "weft.tensor.functional", "weft.tensor.linalg", "weft.func", "weft.optim",
    "weft.data", "weft.importers", "weft.models", "weft.core.errors",
)  # fmt: skip


def public(module: str) -> Iterator[tuple[str, str]]:
    """The public names of a module, and those of its classes, with their docstrings."""
    it = import_module(module)
    names = getattr(it, "__all__", None) or [n for n in dir(it) if not n.startswith("_")]
    for name in names:
        value = vars(it).setdefault(name, getattr(it, name))  # pdoc loads nothing late
        if not isinstance(value, type | types.FunctionType):
            continue  # a constant has a type, and a comment where it stands
        if not hasattr(it, "__all__") and value.__module__ != it.__name__:
            continue  # what the module itself imports
        yield f"{module}.{name}", value.__doc__ or ""
        if inspect.isclass(value) and value.__module__.startswith("weft"):
            for inner, member in vars(value).items():
                kinds = (types.FunctionType, property, classmethod, staticmethod)
                if not inner.startswith("_") and isinstance(member, kinds):
                    docs = (getattr(vars(base).get(inner), "__doc__", "") for base in value.__mro__)
                    yield f"{module}.{name}.{inner}", next(filter(None, docs), "")


def undocumented() -> list[str]:
    """The public names without a docstring of their own or of the method that they override."""
    return sorted({name for m in MODULES for name, text in public(m) if not text.strip()})


def write(folder: Path) -> None:
    """Writes the pages; every warning of pdoc is raised."""
    import pdoc
    import pdoc.render

    pdoc.render.configure(docformat="markdown", show_source=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # An annotation that only type checkers can resolve is shown as it is written.
        warnings.filterwarnings("ignore", message="Error parsing type annotation")
        # Each with what it holds, less the modules below it, whose names it lists itself.
        specs = [part for m in MODULES for part in (m, rf"!{re.escape(m)}\..*")]
        pdoc.pdoc(*specs, output_directory=folder)


if __name__ == "__main__":
    if missing := undocumented():
        sys.exit(f"without a docstring: {', '.join(missing)}")
    write(Path(sys.argv[1]))
