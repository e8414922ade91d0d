"""Files that must survive: full and failing disks, processes killed between any two calls."""

from __future__ import annotations

import errno
import multiprocessing
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import cast

import numpy as np
import pytest
from disk_kit import disk
from rows import by_turns

from weft.cli.chat import _save
from weft.cli.main import invoke
from weft.core.errors import FileFormatError, StorageError, UsageError, WeftError
from weft.host import files
from weft.importers.safetensors import SafetensorsFile, save_file
from weft.models.run.talk import Talk

FAILURES = {"full": errno.ENOSPC, "quota": errno.EDQUOT, "failing": errno.EIO, "killed": 0}


def numbered(n: int) -> dict[str, np.ndarray]:
    return {"a": np.full((300, 70), n, np.float32), "b": np.full(3, n, np.int8)}


def state(folder: Path) -> list[object]:
    """What a reader finds: each of the file, the tensors and the folder is old, new or absent."""
    found: list[object] = []
    text, tensors, inner = folder / "text.json", folder / "x.safetensors", folder / "inner"
    found.append(text.read_bytes() if text.exists() else None)
    if tensors.exists():
        read = SafetensorsFile(tensors)
        found.append({k: sorted(set(read[k].ravel().tolist())) for k in read})
    else:
        found.append(None)
    found.append(sorted((p.name, p.read_bytes()) for p in inner.iterdir()) if inner.exists() else 0)
    return found


def write(folder: Path, n: int) -> None:
    files.write_json(folder / "text.json", {"n": n})
    save_file(folder / "x.safetensors", numbered(n))
    with files.replacing_folder(folder / "inner") as inner:
        files.write_text(inner / f"{n}.txt", str(n) * 100)
        files.write_bytes(inner / "both", bytes([n]))
    if (folder / "old").exists():
        files.remove_folder(folder / "old")


def hidden(folder: Path) -> list[str]:
    return [p.name for p in folder.rglob(".*")]


@pytest.mark.parametrize("what, before", by_turns(FAILURES, [False, True]))
def test_a_failure_at_any_call_leaves_old_or_new(tmp_path: Path, what: str, before: bool) -> None:
    def fresh(name: str) -> Path:
        folder = tmp_path / name
        folder.mkdir()
        if before:
            write(folder, 1)
        (folder / "old").mkdir()
        (folder / "old" / "file").write_text("x")
        return folder

    old, new = state(fresh("old")), fresh("new")
    write(new, 2)
    with disk(new) as counted:
        write(new, 2)
    assert {"create", "write", "fsync", "mkdir", "rename", "replace"} <= set(counted.calls)
    ends = set()
    for at in range(1, len(counted.calls) + 8):
        folder = fresh(str(at))
        failed: StorageError | None = None
        with disk(folder, at, FAILURES[what]) as faulty:
            try:
                write(folder, 2)
            except StorageError as error:
                failed = error
        if failed is not None:
            assert failed.errno == FAILURES[what] and "weft-" not in str(failed)
            assert str(failed).startswith(str(folder)) and "\n" not in str(failed)
            assert hidden(folder) == [] or what == "failing"  # whose removal may fail too
        with files.owned(folder):
            assert hidden(folder) == []
        for got, was, should in zip(state(folder), old, state(new), strict=True):
            assert got in (was, should), (at, faulty.calls[-1])
        assert not (folder / "old").exists() or (folder / "old" / "file").exists()
        ends.add(state(folder) == state(new))
        if faulty.calls and len(faulty.calls) < at:
            break
    assert ends == {False, True}  # from nothing done to everything done


def test_other_errors_keep_their_kind_and_name_what_was_asked_for(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as missing:
        files.write_text(tmp_path / "no" / "x", "")
    assert missing.value.filename == str(tmp_path / "no" / "x")
    (tmp_path / "file").write_text("")
    with pytest.raises(FileExistsError), files.replacing_folder(tmp_path / "file" / "x"):
        pass
    with pytest.raises(UsageError, match="is a file"), files.owned(tmp_path / "file"):
        pass
    with pytest.raises(KeyboardInterrupt), files.replacing(tmp_path / "file"):
        raise KeyboardInterrupt
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_a_file_is_on_the_disk_before_its_name_is(tmp_path: Path) -> None:
    with disk(tmp_path) as seen:
        files.write_text(tmp_path / "x", "x" * 100)
    wanted = ["create", "write", "create", "fsync", "replace", "fsync"]
    assert [call for call in seen.calls if call != "unlink"] == wanted


def test_modes_follow_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        files.write_text(tmp_path / "plain", "")
        with files.replacing(tmp_path / "private", private=True):
            pass
        with files.replacing_folder(tmp_path / "folder"):
            pass
    finally:
        os.umask(before)
    modes = [(tmp_path / n).stat().st_mode & 0o777 for n in ("plain", "private", "folder")]
    assert modes == [0o640, 0o600, 0o750]


# -- who may write, and what is swept --------------------------------------------------------------


def _hold(folder: str, ready: Callable[[int], None]) -> None:
    with files.owned(Path(folder)), files.replacing_folder(Path(folder) / "x") as inner:
        (inner / "half").write_text("half")
        ready(1)
        signal.pause()


@pytest.mark.skipif(os.name == "nt", reason="POSIX locks")
def test_only_what_nobody_writes_any_more_is_swept(tmp_path: Path) -> None:
    """Another process owns the folder, then is killed."""
    other = ".x.0123456789.weft-new"  # a digit more than ours
    for name in (".hidden", other, "x.01234567.weft-new"):
        (tmp_path / name).write_text("not ours")
    context = multiprocessing.get_context("spawn")
    mine, theirs = context.Pipe()
    process = context.Process(target=_hold, args=(str(tmp_path), theirs.send))
    process.start()
    assert mine.poll(60) and mine.recv() == 1
    refused = pytest.raises(UsageError, match="another process is writing there")
    with refused, files.owned(tmp_path):
        pass
    assert len(list(tmp_path.glob(".x.*.weft-new"))) == 2
    process.kill()
    process.join()
    with files.owned(tmp_path):
        pass
    left = sorted(p.name for p in tmp_path.iterdir())
    assert left == sorted([".hidden", other, "x.01234567.weft-new"])


def test_what_was_put_aside_comes_back(tmp_path: Path) -> None:
    aside = tmp_path / ".model.01234567.weft-old"
    aside.mkdir()
    (aside / "weights").write_text("1")
    files.sweep(tmp_path)
    assert (tmp_path / "model" / "weights").read_text() == "1"
    aside.mkdir()  # and goes where something took its place
    files.sweep(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["model"]


def test_a_folder_that_nothing_came_of_is_not_left(tmp_path: Path) -> None:
    with files.owned(tmp_path / "run"):
        assert (tmp_path / "run").is_dir()
    assert not (tmp_path / "run").exists()


def test_digests_see_every_bit(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(bytes(range(64)))
    known = files.digests(tmp_path, ["a", "absent"])
    files.verify(tmp_path, known, "mend it")
    for bit in range(512):
        data = bytearray(range(64))
        data[bit // 8] ^= 1 << bit % 8
        (tmp_path / "a").write_bytes(data)
        with pytest.raises(FileFormatError, match=r"not what was written.*mend it"):
            files.verify(tmp_path, known, "mend it")
    (tmp_path / "a").unlink()
    with pytest.raises(FileFormatError, match=r"No such file.*mend it"):
        files.verify(tmp_path, known, "mend it")


class Said:
    """A conversation."""

    messages = whole = [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize("what", ["a conversation", "a package"])
def test_a_command_writes_all_or_nothing(what: str, tmp_path: Path) -> None:
    def written(folder: Path) -> None:
        if what == "a package":
            invoke(["new-backend", "mychip", "-o", str(folder / "made")])
        else:
            _save(cast(Talk, Said()), str(folder / "made"))

    whole = tmp_path / "whole"
    whole.mkdir()
    with disk(whole) as counted:
        written(whole)
    assert "write" in counted.calls and state(whole)
    for at in range(1, len(counted.calls) + 1):
        folder = tmp_path / str(at)
        folder.mkdir()
        with disk(folder, at, errno.ENOSPC), suppress(WeftError, OSError):
            written(folder)
        left = sorted(p.relative_to(folder) for p in folder.rglob("*"))
        assert left in ([], sorted(p.relative_to(whole) for p in whole.rglob("*"))), at
