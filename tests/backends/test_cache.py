"""The disk cache: what is put is got, what is damaged is absent, trouble with the disk is quiet."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from weft.host import cache
from weft.host.cache import DiskCache

posix = pytest.mark.skipif(os.name != "posix", reason="owners and modes are POSIX's")
root = pytest.mark.skipif(
    os.name != "posix" or os.geteuid() != 0, reason="only root can give files away"
)


def files(directory: Path) -> list[Path]:
    """The entries."""
    return sorted(p for p in directory.rglob("*") if p.is_file() and p.name != "key")


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
        made = [tmp_path / "new", tmp_path / "new" / "cache", *(tmp_path / "new").rglob("*")]
        assert not any(p.stat().st_mode & 0o077 for p in made)


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


def planted(tmp_path: Path) -> tuple[DiskCache, Path]:
    """A cache with one entry, opened anew, and the entry's file."""
    DiskCache(tmp_path / "cache").put("key", b"code")
    (path,) = files(tmp_path)
    return DiskCache(tmp_path / "cache"), path


@posix
@pytest.mark.parametrize("place", ["cache", "."])
def test_a_directory_that_others_may_write_is_not_used(
    tmp_path: Path, place: str, capsys: pytest.CaptureFixture[str]
) -> None:
    cache, _ = planted(tmp_path)
    (tmp_path / place).chmod(0o777)
    assert cache.get("key") is None
    cache.put("other", b"more")
    assert len(files(tmp_path)) == 1
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "others may write" in said and "WEFT_CACHE" in said
    (tmp_path / place).chmod(0o1777 if place == "." else 0o700)  # sticky above: as /tmp is
    assert DiskCache(tmp_path / "cache").get("key") == b"code"


@root
@pytest.mark.parametrize("place", ["cache", ".", "cache/key", "entry"])
def test_what_another_user_owns_is_not_used(tmp_path: Path, place: str) -> None:
    cache, entry = planted(tmp_path)
    os.chown(entry if place == "entry" else tmp_path / place, 12345, -1)
    assert cache.get("key") is None


@posix
@pytest.mark.parametrize("harm", ["mode", "symlink", "hard link", "fifo", "zero", "folder"])
def test_an_entry_of_another_kind_is_absent(tmp_path: Path, harm: str) -> None:
    cache, path = planted(tmp_path)
    kept = tmp_path / "kept"
    path.rename(kept)
    if harm == "mode":
        kept.rename(path)
        path.chmod(0o620)
    elif harm == "symlink":
        path.symlink_to(kept)
    elif harm == "hard link":
        path.hardlink_to(kept)
    elif harm == "fifo":
        os.mkfifo(path)
    elif harm == "zero":
        path.symlink_to("/dev/zero")
    else:
        path.mkdir()
    assert cache.get("key") is None


def test_entries_are_bound_to_user_and_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache_, _ = planted(tmp_path)
    assert cache_.get("key") == b"code"
    monkeypatch.setattr(cache, "_place", lambda: "0@elsewhere")
    assert cache_.get("key") is None


def test_entries_of_another_key_are_absent(tmp_path: Path) -> None:
    """As where a whole cache, keys and all but its owner's secret, is copied into place."""
    DiskCache(tmp_path / "theirs").put("key", b"planted")
    ours = DiskCache(tmp_path / "ours")
    ours.put("key", b"code")
    (theirs,), (mine,) = files(tmp_path / "theirs"), files(tmp_path / "ours")
    mine.write_bytes(theirs.read_bytes())
    assert DiskCache(tmp_path / "ours").get("key") is None
    for short in (b"", b"x" * 31, b"x" * 33):
        (tmp_path / "ours" / "key").write_bytes(short)
        fresh = DiskCache(tmp_path / "ours")
        assert fresh.get("key") is None
        fresh.put("key", b"again")
        assert DiskCache(tmp_path / "ours").get("key") == b"again"


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


@pytest.mark.parametrize("size", [200, 20_000])
def test_all_files_are_looked_at_by_the_bytes_that_are_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """Small entries seldom, so that thousands of kernels do not walk through each other."""
    looks: list[None] = []
    monkeypatch.setattr(DiskCache, "prune", lambda self: looks.append(None))
    c = DiskCache(tmp_path, limit=300 * size)
    for i in range(300):
        c.put(str(i), bytes(size))
    assert 45 < len(looks) < 85  # 64, of any size


def test_default_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path))
    assert cache.default_directory() == tmp_path
    for off in ("", "0", "off"):
        monkeypatch.setenv("WEFT_CACHE", off)
        assert cache.default_directory() is None
    monkeypatch.delenv("WEFT_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert "weft" in str(cache.default_directory())


def test_a_read_asks_for_what_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A limit is no size: no read asks for more memory than the file has, and a little."""
    import io

    from weft.host import private

    asked: list[int] = []

    class Counting(io.BufferedReader):
        def read(self, size: int | None = -1, /) -> bytes:
            asked.append(-1 if size is None else size)
            return super().read(size)

    real = private.open_regular
    monkeypatch.setattr(private, "open_regular", lambda *a: Counting(real(*a).detach()))
    c = DiskCache(tmp_path)
    for size in (0, 10, 100_000, 5_000_000):
        asked.clear()
        c.put("key", bytes(size))
        assert c.get("key") == bytes(size)
        assert asked and min(asked) > 0 and max(asked) <= size + (1 << 17)


@pytest.mark.parametrize("size", [0, 1, 65535, 65536, 65537, 200_000])
def test_what_has_no_size_or_grows_is_read_whole(tmp_path: Path, size: int) -> None:
    from weft.host.private import read_regular

    path = tmp_path / "f"
    path.write_bytes(bytes(size))
    assert read_regular(path, size) == bytes(size)
    if size:
        with pytest.raises(OSError, match="at most"):
            read_regular(path, size - 1)
    if Path("/proc/self/status").exists():  # a regular file of 0 bytes, as the system says
        assert read_regular("/proc/self/status", 1 << 20).startswith(b"Name:")
        with pytest.raises(OSError, match="at most"):
            read_regular("/proc/self/status", 10)


@pytest.mark.parametrize("fails", [MemoryError, OSError, ValueError, RuntimeError])
def test_any_failure_of_a_cache_is_a_miss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: type[Exception]
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise fails("no")

    for name in ("read_regular", "replacing", "make_private", "distrust", "check_inside"):
        c = DiskCache(tmp_path / name)
        with monkeypatch.context() as patch:
            patch.setattr(cache, name, broken)
            c.put("key", b"data")
            assert c.get("key") is None
        fresh = DiskCache(tmp_path / name)
        fresh.put("key", b"data")
        assert fresh.get("key") == b"data"


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="address space is Linux's")
def test_a_warm_cache_needs_no_room_for_the_largest_entry(tmp_path: Path) -> None:
    """With as much address space as a cold start takes, and 100 MB."""
    import subprocess
    import sys

    code = (
        "import os, resource, sys, weft\n"
        "x = weft.tensor([1.0, 2.0]).to('cpu')\n"
        "f = lambda x: (x @ x) * 2\n"
        "import weft.backends.cpu.device, weft.compile.passes, weft.tensor.compiled\n"
        "if len(sys.argv) > 1:\n"
        "    pages = int(open('/proc/self/statm').read().split()[0])\n"
        "    most = pages * os.sysconf('SC_PAGE_SIZE') + (400 << 20)\n"
        "    resource.setrlimit(resource.RLIMIT_AS, (most, most))\n"
        "print(weft.compile(f, device='cpu')(weft.tensor([1.0, 2.0])).item())\n"
    )
    env = {**os.environ, "WEFT_CACHE": str(tmp_path), "WEFT_NUM_THREADS": "2"}
    for more in ([], ["limited"]):
        done = subprocess.run(
            [sys.executable, "-c", code, *more], env=env, capture_output=True, text=True
        )
        assert done.stdout == "10.0\n", done.stderr
