"""The names of PyTorch in a script, and their counterparts in weft.torch.

The script is read, not run. A name is followed from its import (`import torch.nn.functional as F`).
A method is recognised from its name alone, since the type of an object is unknown.
"""

from __future__ import annotations

import ast
import difflib
import importlib
import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from weft.core.errors import UsageError
from weft.torch.absent import reason
from weft.torch.lacking import PARTS, Absent, Lacking
from weft.torch.porting_names import MISSING_METHODS

Verdict = Literal["same", "differs", "missing"]

# Packages and parts of PyTorch that weft.torch lacks as a whole, and what to use.
LACKING: Mapping[str, str] = {
    **PARTS,
    "torchvision": "it needs PyTorch; weft.importers.from_torch takes its nets",
    "torchaudio": "it needs PyTorch",
    "torchtext": "it needs PyTorch",
    "lightning": "it needs PyTorch",
    "pytorch_lightning": "it needs PyTorch",
    "accelerate": "it needs PyTorch",
}
# Names that weft.torch has and that do something else.
DIFFERS: Mapping[str, str] = {
    "torch.save": "writes named tensors as safetensors, nothing else",
    "torch.load": "reads safetensors; weft unpickles nothing",
    "torch.manual_seed": "seeds weft's generator: other numbers are drawn",
    "torch.compile": "weft.compile: shapes and dtypes are fixed per signature",
    "torch.backends": "its switches change nothing",
}


@dataclass(frozen=True)
class UsedName:
    """A name of PyTorch's at a line of a script, what weft has for it, and why if it differs."""

    line: int
    name: str
    verdict: Verdict
    note: str = ""


def names_in(source: str, file: str = "<script>") -> list[UsedName]:
    """Returns the names of PyTorch's that a script uses, line by line. Raises UsageError for source
    that is not Python."""
    reader = _Reader()
    reader.visit(_parsed(source, file))
    return sorted(set(reader.found), key=lambda used: (used.line, used.name))


def ported(source: str, file: str = "<script>") -> str:
    """Returns the script with imports from weft.torch in place of torch. Raises UsageError for
    source that is not Python."""
    lines = source.splitlines(keepends=True)
    for node in ast.walk(_parsed(source, file)):
        if isinstance(node, ast.Import) and any(_home(a.name) for a in node.names):
            made = "; ".join(map(_imported, node.names))
        elif isinstance(node, ast.ImportFrom) and not node.level and _home(node.module or ""):
            names = ", ".join(f"{a.name} as {a.asname}" if a.asname else a.name for a in node.names)
            made = f"from {_home(node.module or '')} import {names}"
        else:
            continue
        first, last = node.lineno - 1, (node.end_lineno or node.lineno) - 1
        head = lines[first].encode()[: node.col_offset].decode()
        tail = lines[last].encode()[node.end_col_offset :].decode()
        lines[first : last + 1] = [head + made + tail] + [""] * (last - first)
    return "".join(lines)


def _parsed(source: str, file: str) -> ast.Module:
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as e:
        where = f"line {e.lineno}: {e.msg}" if isinstance(e, SyntaxError) else str(e)[:80]
        raise UsageError(f"{file} is not Python: {where}") from None


def _is_torch(name: str) -> bool:
    return name == "torch" or name.startswith("torch.")


def _home(name: str) -> str | None:
    """weft's module in the place of one of PyTorch's, or of einops, which computes with both."""
    if name in ("einops", "einops.layers.torch"):
        return "weft.torch.einops"
    return f"weft.{name}" if _is_torch(name) else None


def _imported(name: ast.alias) -> str:
    home = _home(name.name)
    if home is None:
        return f"import {name.name}" + (f" as {name.asname}" if name.asname else "")
    if name.asname or "." not in name.name:
        return f"import {home} as {name.asname or name.name}"
    return f"import weft.torch as torch; import {home}"


class _Reader(ast.NodeVisitor):
    """Collects names. `known` maps a variable to what it was imported as."""

    def __init__(self) -> None:
        self.found: list[UsedName] = []
        self._known: dict[str, str] = {}

    def visit_Import(self, node: ast.Import) -> None:
        for name in node.names:
            root = name.name.partition(".")[0]
            if root == "torch" or root in LACKING:
                self._known[name.asname or root] = name.name if name.asname else root
                if name.name != "torch":
                    self._judge(node.lineno, name.name)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        module = "" if node.level else node.module or ""
        if module.partition(".")[0] == "torch" or module.partition(".")[0] in LACKING:
            for name in node.names:
                self._known[name.asname or name.name] = f"{module}.{name.name}"
                if name.name != "*":
                    self._judge(node.lineno, f"{module}.{name.name}")

    def visit_Attribute(self, node: ast.Attribute) -> None:
        path = self._path(node)
        if path is None:
            if node.attr in MISSING_METHODS:
                note = "a tensor of weft lacks this method, if it is one's"
                why = reason(f"torch.Tensor.{node.attr}")
                note += f": {why}" if why else ""
                self.found.append(UsedName(node.lineno, f".{node.attr}", "missing", note))
            self.visit(node.value)
        else:
            self._judge(node.lineno, path)

    def visit_Call(self, node: ast.Call) -> None:
        path = self._path(node.func)
        if path is not None:
            given = [word.arg for word in node.keywords if word.arg is not None]
            self._judge_words(node.lineno, path, given)
        self.generic_visit(node)

    def _path(self, node: ast.AST) -> str | None:
        """The dotted name from an import on; None for any other expression."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name) or node.id not in self._known:
            return None
        return ".".join([self._known[node.id], *reversed(parts)])

    def _judge(self, line: int, path: str) -> None:
        self.found.append(UsedName(line, path, *_verdict(path)))

    def _judge_words(self, line: int, path: str, given: list[str]) -> None:
        """Judges the keywords of a call of something that weft has."""
        found = _counterpart(path)
        if found is None or not callable(found) or _verdict(path)[0] == "missing":
            return
        try:
            known = inspect.signature(found).parameters
        except (TypeError, ValueError):
            return
        if any(p.kind is p.VAR_KEYWORD for p in known.values()):
            return
        for word in given:
            if word not in known and not (word == "out" and hasattr(found, "kind")):
                note = f"weft has {path}, without this argument"
                self.found.append(UsedName(line, f"{path}({word}=)", "missing", note))


def _verdict(path: str) -> tuple[Verdict, str]:
    steps = path.split(".")
    for n in range(len(steps), 0, -1):
        at = ".".join(steps[:n])
        if at in DIFFERS:
            return "differs", DIFFERS[at]
        if at in LACKING and _counterpart(path) is None:
            return "missing", LACKING[at]
    if _counterpart(path) is not None:
        return "same", ""
    return "missing", reason(path) or _near(steps)


def _near(steps: list[str]) -> str:
    """A name that is like the missing one."""
    for n in range(len(steps) - 1, 0, -1):
        owner = _counterpart(".".join(steps[:n]))
        if owner is not None:
            found = difflib.get_close_matches(steps[n], dir(owner), 1, 0.8)
            return f"weft has {'.'.join([*steps[:n], found[0]])}" if found else ""
    return ""


def _counterpart(path: str) -> Any:
    """The counterpart in weft.torch of a dotted name of PyTorch's (None: there is none)."""
    if not _is_torch(path):
        return None
    found: Any = importlib.import_module("weft.torch")
    at = "weft.torch"
    for step in path.split(".")[1:]:
        at += f".{step}"
        missing = object()
        value = getattr(found, step, missing)
        if value is missing:
            try:
                value = importlib.import_module(at)
            except ImportError:
                return None
        found = value
    return None if isinstance(found, Lacking | Absent) else found


def summary(used: list[UsedName]) -> Iterator[str]:
    """Yields what to tell of a script's names: a line of counts, then what is not the same."""
    names = {(u.name, u.verdict) for u in used}
    counts = {kind: sum(v == kind for _, v in names) for kind in ("same", "differs", "missing")}
    yield (
        f"{len(names)} names of PyTorch: weft.torch has {counts['same']}, {counts['differs']} "
        f"of its own kind, and lacks {counts['missing']}"
    )
    for one in used:
        if one.verdict != "same":
            yield f"{one.line:5}  {one.name}  {one.verdict}" + (f": {one.note}" if one.note else "")
