"""Sizes that follow from others, in the text in which PyTorch saves them: "Add(Mul(Integer(2),
Symbol('s77', integer=True)), Integer(1))". It is read as data; nothing in it is called."""

from __future__ import annotations

import ast
import functools
import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

from weft.importers.ports import DerivedSize

_FOLDS: dict[str, Callable[[int, int], int]] = {
    "Add": operator.add,
    "Mul": operator.mul,
    "Max": max,
    "Min": min,
    "FloorDiv": operator.floordiv,
    "CleanDiv": operator.floordiv,
    "Mod": operator.mod,
    "PythonMod": operator.mod,
    "Pow": pow,
}
_SYMBOLS = {"Add": " + ", "Mul": "*", "FloorDiv": "//", "CleanDiv": "//", "Mod": " % ", "Pow": "**"}


def size_of(text: str) -> int | str | DerivedSize:
    """The size of that text: a number, a name, or what follows from names (unchecked where it uses
    what is not known here)."""
    try:
        tree = ast.parse(text[:10_000], mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return DerivedSize(text[:80], lambda sizes: None)
    if isinstance(found := _leaf(tree), int | str):
        return found
    return DerivedSize(_text(tree), functools.partial(_value, tree))


def _leaf(node: Any) -> int | str | None:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.args:
        first = node.args[0]
        if node.func.id in ("Symbol", "Integer") and isinstance(first, ast.Constant):
            return first.value if isinstance(first.value, int | str) else None
    return None


def _text(node: Any) -> str:
    found = _leaf(node)
    if found is not None or not isinstance(node, ast.Call):
        return ast.unparse(node) if found is None else str(found)
    name = node.func.id if isinstance(node.func, ast.Name) else "?"
    parts = [_text(a) for a in node.args]
    return f"({_SYMBOLS[name].join(parts)})" if name in _SYMBOLS else f"{name}({', '.join(parts)})"


def _value(node: Any, sizes: Mapping[str, int]) -> int | None:
    found = _leaf(node)
    if isinstance(found, int):
        return found
    if isinstance(found, str):
        return sizes.get(found)
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
        return None
    fold, parts = _FOLDS.get(node.func.id), [_value(a, sizes) for a in node.args]
    known = [p for p in parts if p is not None]
    if fold is None or len(known) < len(parts) or not known:
        return None
    if node.func.id == "Pow" and not (0 <= known[-1] <= 8 and abs(known[0]) < 1 << 31):
        return None
    try:
        value = functools.reduce(fold, known)
    except ZeroDivisionError:
        return None
    return value if math.fabs(value) < 1 << 62 else None
