"""What is kept on disk between processes goes by the source that made it: one list of that source
for each kind of thing kept, so that a changed file never serves what it would no longer make."""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

_ROOT = Path(__file__).parents[1]

# kind -> the packages and modules whose code makes it (tests/core/test_versions.py holds the
# list against their imports).
MADE_BY: dict[str, tuple[str, ...]] = {
    "programs": (
        "core", "graph", "kernel", "program", "ops", "transform", "templates", "compile", "models",
        "tensor/casting.py",
    ),
    "cpu code": ("core", "kernel", "backends/llvm", "backends/cpu"),
    "emulated code": ("core", "kernel", "backends/llvm", "backends/cpu", "backends/emulated"),
    "gpu code": ("core", "kernel", "backends/llvm", "backends/gpu"),
    "tuning": ("templates",),
    "training": (".",),
}  # fmt: skip


def files(kind: str) -> Iterator[Path]:
    """The source files that make things of this kind, in a fixed order."""
    for name in MADE_BY[kind]:
        path = _ROOT / name
        yield from sorted(path.rglob("*.py")) if path.is_dir() else (path,)


@functools.cache
def stamp(kind: str) -> str:
    """Changes whenever one of the files does, by their sizes and times: for what is kept beside
    this installation."""
    marks = ((f.relative_to(_ROOT), os.stat(f)) for f in files(kind) if f.exists())
    text = ";".join(f"{name}:{status.st_size}:{status.st_mtime_ns}" for name, status in marks)
    return hashlib.sha256(text.encode()).hexdigest()


@functools.cache
def digest(kind: str) -> str:
    """16 hex digits that change with the files' content: for what may move to another machine."""
    total = hashlib.sha256()
    for path in files(kind):
        total.update(path.name.encode() + b"\0" + path.read_bytes())
    return total.hexdigest()[:16]
