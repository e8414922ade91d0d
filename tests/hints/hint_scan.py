"""Finds the commands that weft's messages suggest, in its source."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from weft.cli.main import COMMANDS

ROOT = Path(__file__).resolve().parents[2]
_NAMES = "|".join(sorted(COMMANDS, key=len, reverse=True))
# What a reader could type. `weft` commands in messages are built by hints.command, those of pip
# for weft itself by install.how: their words are quoted there, and found here as calls.
OURS = re.compile(rf"\bweft (?:{_NAMES})\b(?!-)[^\"]*")
THEIRS = re.compile(
    r"\b(?:(?:pip|npm|apt|apt-get) install|hf auth|python3? -m|sh scripts/)[^;,\n)`]*"
)
_HELP = {"help", "epilog", "short_help"}
_QUIET = ("cli/new_backend.py:_PYPROJECT", "cli/new_backend.py:_README", "cli/check.py:HEAD")


class Hint(NamedTuple):
    """`file` in weft/, and the words of a command, `{}` for each value that is filled in."""

    file: str
    words: str


def hints() -> set[Hint]:
    """Each command that is built by a function for messages, or stands in one as text."""
    return {hint for path, tree in _trees() for hint in (*_calls(path, tree), *_texts(path, tree))}


def mentions() -> set[Hint]:
    """Texts in which the name of a weft command stands as prose."""
    return {
        Hint(path, found[0].strip())
        for path, tree in _trees()
        for text in _literals(path, tree)
        for found in OURS.finditer(text)
    }


def options() -> set[Hint]:
    """Each option that stands in a text, but those of linkers, assemblers and pip."""
    return {
        Hint(path, option)
        for path, tree in _trees(every=True)
        if not path.startswith("backends/")
        for text in _literals(path, tree)
        for option in re.findall(r"(?<![\w-])--[a-z][a-z-]+", text)
    }


def helps() -> Iterator[str]:
    """Each line of an example in a command's help."""
    for path, tree in _parsed("epilog="):
        for call in (n for n in ast.walk(tree) if isinstance(n, ast.Call)):
            for given in call.keywords:
                if given.arg == "epilog" and isinstance(given.value, ast.Constant):
                    for line in str(given.value.value).splitlines():
                        command = line.strip().removeprefix("Example:").strip()
                        if command.startswith("weft "):
                            yield f"{path}: {command}"


def _trees(every: bool = False) -> list[tuple[str, ast.Module]]:
    """The modules in whose text a command might stand, or every one with an option."""
    calls = r"\b(?:command|how|new_figure)\(|epilog="
    return _parsed("--[a-z]" if every else rf"{OURS.pattern}|{THEIRS.pattern}|{calls}")


@cache
def _parsed(pattern: str) -> list[tuple[str, ast.Module]]:
    """The modules in whose text the pattern is found."""
    likely, found = re.compile(pattern), []
    for path in sorted((ROOT / "weft").rglob("*.py")):
        name, text = path.relative_to(ROOT / "weft").as_posix(), path.read_text(encoding="utf-8")
        if name not in ("core/hints.py", "core/install.py") and likely.search(text):
            tree = ast.parse(text)
            for call in (n for n in ast.walk(tree) if isinstance(n, ast.Call)):
                call.keywords = [k for k in call.keywords if k.arg != "old"]  # old names of options
            found.append((name, tree))
    return found


def _calls(path: str, tree: ast.Module) -> Iterator[Hint]:
    for call in (n for n in ast.walk(tree) if isinstance(n, ast.Call)):
        called = call.func.id if isinstance(call.func, ast.Name) else ""
        if called == "command" and _imports(tree, "weft.core.hints"):
            yield Hint(path, " ".join(["weft", *map(_word, call.args)]))
        elif called == "how" and _imports(tree, "weft.core.install"):
            yield Hint(path, f"pip install .[{_word(call.args[0])}]")
        elif called == "new_figure" and len(call.args) >= 2 and _word(call.args[0]) != "{}":
            yield Hint(path, f"pip install .[{_word(call.args[1])}]")


def _texts(path: str, tree: ast.Module) -> Iterator[Hint]:
    for text in _literals(path, tree):
        for found in THEIRS.finditer(text):
            yield Hint(path, found[0].strip())


def _imports(tree: ast.Module, module: str) -> bool:
    return any(isinstance(n, ast.ImportFrom) and n.module == module for n in ast.walk(tree))


def _word(node: ast.expr) -> str:
    if isinstance(node, ast.Constant):
        return str(node.value)
    return "*" if isinstance(node, ast.Starred) else "{}"


def _literals(path: str, tree: ast.Module) -> Iterator[str]:
    """The strings of a module that may be shown: not docstrings, not the text of help."""
    skipped: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if isinstance(first, ast.Expr):
                skipped.add(first.value)
        elif isinstance(node, ast.Call):
            for given in node.keywords:
                if given.arg in _HELP:
                    skipped.update(ast.walk(given.value))
        elif isinstance(node, ast.JoinedStr):
            skipped.update(node.values)
        elif isinstance(node, ast.Assign) and f"{path}:{ast.unparse(node.targets[0])}" in _QUIET:
            skipped.update(ast.walk(node.value))
    for node in ast.walk(tree):
        if node in skipped:
            continue
        if isinstance(node, ast.JoinedStr):
            yield "".join(
                str(v.value) if isinstance(v, ast.Constant) else "{}" for v in node.values
            )
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
