"""The places of a server's models, by the names that requests use."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

from weft.core.errors import UsageError, WeftError
from weft.importers.hf_config import read_object
from weft.models.run.entry import located


def named(models: Iterable[str]) -> dict[str, str]:
    """Names for models given as PATH or NAME=PATH: a path's last part. A NAME may have slashes;
    what is there under the whole, and what begins as a path does (/, ./, ../, ~), is a PATH.
    Raises UsageError where two would have the same name, or one has none."""
    made: dict[str, str] = {}
    for given in models:
        name, equals, path = given.partition("=")
        if not equals or os.path.exists(given) or re.match(r"~|\.{0,2}/", given):
            path, there = given, os.path.exists(given)
            name = given if "/" in given and not there else Path(given).resolve().name
        if not (name.strip() and path.strip()):
            raise UsageError(f"{given!r:.100} names no model; give PATH, ORG/NAME or NAME=PATH")
        _check_name(name)
        if name in made:
            raise UsageError(f"two models are called {name!r}; give one a name: NAME={path}")
        made[name] = path
    return made


def models_in(folder: Path) -> tuple[dict[str, str], dict[str, str]]:
    """The models of a folder: folders with a config.json, GGUF files and compiled files, by their
    names without an ending; and those that cannot be served, with the reasons. Raises OSError for
    a folder that cannot be read."""
    made: dict[str, str] = {}
    wrong: dict[str, str] = {}
    for path in sorted(folder.iterdir()):
        if path.name.startswith("."):
            continue
        name = path.stem if path.suffix in _ENDS else path.name
        try:
            if path.suffix not in _ENDS and not (path / "config.json").is_file():
                continue
            _check_name(name)
            if name in made or name in wrong:
                made.pop(name, None)
                raise UsageError(f"two models in {folder} are called {name!r}; rename one")
            if path.exists() and not (path.is_file() or path.is_dir()):  # a pipe may never end
                raise UsageError(f"{path} is neither a file nor a folder; move it elsewhere")
            check_model(name, path)
        except (UsageError, OSError) as e:
            wrong[name] = str(e)
        else:
            made[name] = str(path)
    return made, wrong


_ENDS = (".gguf", ".weft")


def check_model(name: str, path: Path) -> None:
    """Raises UsageError where a path cannot be a model's: those after the first are loaded when
    somebody asks, which is too late to say so."""
    try:
        if located(path).is_dir():
            read_object(path / "config.json")
    except WeftError as e:
        raise UsageError(f"the model {name!r:.100} is not there: {e}") from None


def _check_name(name: str) -> None:
    """Raises UsageError for a name that JSON or a line of the log cannot hold: the list of models
    would fail for everybody."""
    if not name.isprintable() or not name.strip():
        raise UsageError(f"a model is called {name!a:.100}; rename it: names are printable text")
