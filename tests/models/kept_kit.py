"""Quantised weights that are kept, and harm done to their files."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from weft.importers.safetensors import SafetensorsFile
from weft.quantize import search as search_
from weft.quantize.search import Search


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(search_, "STEPS", {4: 1, 5: 1, 8: 1})
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "cache"))


def searches(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What was searched for from now on."""
    real, found = Search.__call__, []

    def counted(self: Search, *args: object) -> object:
        found.append(self)
        return real(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(Search, "__call__", counted)
    return found


def rewrite(path: Path, change: Callable[[bytearray], None]) -> None:
    """Changes a file in place and sets its times back."""
    was, data = path.stat(), bytearray(path.read_bytes())
    change(data)
    with path.open("r+b") as file:
        file.write(data)
    os.utime(path, ns=(was.st_atime_ns, was.st_mtime_ns))
    assert path.stat().st_mtime_ns == was.st_mtime_ns and path.stat().st_size == was.st_size


def place(path: Path, name: str) -> slice:
    info = SafetensorsFile(path).tensors[name]
    return slice(info.start, info.stop)


def flip(path: Path) -> None:
    def change(data: bytearray) -> None:
        data[place(path, "0.up.w.codes").start + 5] ^= 1

    rewrite(path, change)


def zero(path: Path) -> None:
    def change(data: bytearray) -> None:
        at = place(path, "0.down.w.codes")
        data[at] = bytes(at.stop - at.start)

    rewrite(path, change)


def swap(path: Path) -> None:
    def change(data: bytearray) -> None:
        one, other = place(path, "0.q.w.codes"), place(path, "1.q.w.codes")
        data[one], data[other] = data[other], data[one]

    rewrite(path, change)
