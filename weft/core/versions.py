"""The source versions of files kept on disk between processes.

One list names the source behind each kind of file. A changed source file so never serves what it
would no longer make.
"""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

_ROOT = Path(__file__).parents[1]

# kind -> the packages and modules whose code makes it (tests/core/test_versions.py checks the list
# against their imports).
MADE_BY: dict[str, tuple[str, ...]] = {
    "programs": (
        "core", "graph", "kernel", "program", "ops", "transform", "templates", "compile", "models",
        "machines", "tensor/casting.py", "vision", "audio",
    ),
    "cpu code": ("core", "kernel", "backends/llvm", "backends/cpu"),
    "emulated code": ("core", "kernel", "backends/llvm", "backends/cpu", "backends/emulated"),
    "gpu code": ("core", "kernel", "backends/llvm", "backends/gpu"),
    "packed order": (
        "core", "program", "importers/gguf_blocks.py", "importers/gguf_codebooks.py",
        "importers/gguf_decode.py", "importers/packed/gguf.py", "importers/packed/layer.py",
        "models/weights/gguf.py",
    ),
    "tokenizers": (
        "core", "importers/gguf_values.py", "models/text/gguf_tokenizer.py",
        "models/text/tokenizer_plain.py",
    ),
    "traces": (
        "core", "graph", "ops", "tensor", "importers/aten", "importers/torch_export",
        "importers/imported.py", "importers/ports.py", "importers/steps.py", "models/arch",
        "models/zoo",
    ),
    "tuning": ("templates",),
    "training": (".",),
}  # fmt: skip


def files(kind: str) -> Iterator[str]:
    """The source files that make things of this kind, in a fixed order, relative to the package:
    a process looks for hundreds before its first result, so they are plain texts."""
    for name in MADE_BY[kind]:
        yield from (name,) if name.endswith(".py") else _sources(name)


def _sources(folder: str) -> Iterator[str]:
    with os.scandir(f"{_ROOT}/{folder}") as found:
        inside = sorted((entry.name, entry.is_dir()) for entry in found)
    for name, is_folder in inside:
        path = name if folder == "." else f"{folder}/{name}"
        if is_folder:
            yield from _sources(path)
        elif name.endswith(".py"):
            yield path


@functools.cache
def stamp(kind: str) -> str:
    """64 hex digits that change with the content of the files: their times may be clamped."""
    total = hashlib.sha256()
    for path in files(kind):
        total.update(f"{path}\0{_content(path)}\0".encode())
    return total.hexdigest()


def digest(kind: str) -> str:
    """The first 16 digits of `stamp`, for what people read."""
    return stamp(kind)[:16]


@functools.cache
def _content(path: str) -> str:
    with open(f"{_ROOT}/{path}", "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()
