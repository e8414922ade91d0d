"""The disk cache: what is put is got, what is damaged is absent, trouble with the disk is quiet."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from weft.backends import cache
from weft.backends.cache import DiskCache


def files(directory: Path) -> list[Path]:
    return sorted(p for p in directory.rglob("*") if p.is_file())


def test_put_then_get(tmp_path: Path) -> None:
    c = DiskCache(tmp_path / "new" / "cache")
    assert c.get("a") is None
    for data in (b"", b"x" * 100_000, os.urandom(999)):
        c.put("a", data)
        assert c.get("a") == data
    assert c.get("b") is None
    assert len(files(tmp_path)) == 1  # no temporary files are left
    assert DiskCache(tmp_path / "new" / "cache").get("a") == c.get("a")
    if os.name == "posix":  # code is run from here: others must not write it
        assert not (tmp_path / "new" / "cache").stat().st_mode & 0o077


@pytest.mark.parametrize("harm", ["truncate", "flip", "empty", "extend", "magic"])
def test_damage_counts_as_absent(tmp_path: Path, harm: str) -> None:
    c = DiskCache(tmp_path)
    c.put("key", b"some machine code")
    (path,) = files(tmp_path)
    raw = bytearray(path.read_bytes())
    if harm == "truncate":
        raw = raw[:-1]
    elif harm == "flip":
        raw[-3] ^= 1
    elif harm == "empty":
        raw = bytearray()
    elif harm == "extend":
        raw += b"!"
    else:
        raw[0] ^= 1
    path.write_bytes(bytes(raw))
    assert c.get("key") is None
    c.put("key", b"again")
    assert c.get("key") == b"again"


def test_an_entry_moved_to_another_key_is_refused(tmp_path: Path) -> None:
    c = DiskCache(tmp_path)
    c.put("a", b"code of a")
    (path,) = files(tmp_path)
    c.put("b", b"code of b")
    (other,) = (p for p in files(tmp_path) if p != path)
    other.write_bytes(path.read_bytes())
    assert c.get("b") is None


def test_a_directory_that_cannot_be_written_is_tolerated(tmp_path: Path) -> None:
    blocker = tmp_path / "file"
    blocker.write_text("not a directory")
    for c in (DiskCache(blocker / "cache"), DiskCache(None)):
        c.put("key", b"data")
        assert c.get("key") is None
        c.prune()


def test_size_is_bounded(tmp_path: Path) -> None:
    c = DiskCache(tmp_path, limit=10_000)
    for i in range(40):
        c.put(str(i), bytes(1000))
        os.utime(c._path(str(i)), (i, i))  # type: ignore[arg-type]
    c.prune()
    assert sum(p.stat().st_size for p in files(tmp_path)) <= 10_000
    assert c.get("0") is None and c.get("39") == bytes(1000)


def test_default_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path))
    assert cache.default_directory() == tmp_path
    for off in ("", "0"):
        monkeypatch.setenv("WEFT_CACHE", off)
        assert cache.default_directory() is None
    monkeypatch.delenv("WEFT_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert "weft" in str(cache.default_directory())
