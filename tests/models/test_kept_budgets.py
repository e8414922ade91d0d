"""Pieces of an interrupted weft quantize, and the budgets of what is kept."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

import numpy as np
import pytest
from kept_kit import flip, quick, rewrite, searches, swap, zero  # noqa: F401
from rows import few
from test_quantize_hostile import QUICK, small

from weft.core.budget import CacheFolder
from weft.host import cache as disk
from weft.importers.safetensors import open_checkpoint, save_file
from weft.models.weights.kept_tensors import Tensors
from weft.quantize import kept as kept_
from weft.quantize.job import quantize
from weft.quantize.resume import STATE

# -- weft quantize ---------------------------------------------------------------------------------


def interrupted(source: Path, out: Path, after: int) -> Path:
    """A job that ended after some pieces; the folder that it left."""

    def stop(what: str, done: int, of: int) -> None:
        if done == after:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        quantize(source, out, QUICK, report=stop)
    return out.with_name(f".{out.name}.quantizing")


def bits(folder: Path) -> dict[str, bytes]:
    return {n: v.tobytes() for n, v in open_checkpoint(folder).items()}


@pytest.mark.parametrize(
    "harm",
    few(["flip", "swap", "cut", "zero", "mode", "gone", "link", "state"], "flip", "link", "state"),
)
def test_a_resumed_job_takes_no_damaged_piece(
    tmp_path: Path, harm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = small(tmp_path / "m", layers=2)
    quantize(source, tmp_path / "whole", QUICK)
    left = interrupted(source, tmp_path / "out", 3)
    first, second = sorted(left.glob("model-*"))[1:]
    data, other = first.read_bytes(), second.read_bytes()
    if harm == "flip":
        rewrite(first, lambda d: d.__setitem__(-9, d[-9] ^ 1))
    elif harm == "swap":
        rewrite(first, lambda d: d.__setitem__(slice(-64, None), other[-64:]))
    elif harm == "cut":
        first.write_bytes(data[:-8])
    elif harm == "zero":
        rewrite(first, lambda d: d.__setitem__(slice(-64, None), bytes(64)))
    elif harm == "mode":
        first.chmod(0o666)
    elif harm == "gone":
        first.unlink()
    elif harm == "link":
        first.rename(tmp_path / "aside")
        first.symlink_to(tmp_path / "aside")
    else:
        (left / STATE).write_text((left / STATE).read_text().replace("int8", "int4", 1))
    made = searches(monkeypatch)
    quantize(source, tmp_path / "out", QUICK)
    assert made and bits(tmp_path / "out") == bits(tmp_path / "whole")
    if harm == "link":
        assert (tmp_path / "aside").read_bytes() == data


def test_a_resumed_job_takes_what_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = small(tmp_path / "m", layers=2)
    interrupted(source, tmp_path / "out", 3)
    made = searches(monkeypatch)
    quantize(source, tmp_path / "out", QUICK)
    assert not made


def test_a_resumed_job_of_another_model_of_the_same_size_and_times(tmp_path: Path) -> None:
    source = small(tmp_path / "m", layers=2)
    weights = source / "model.safetensors"
    os.utime(weights, (0, 0))
    interrupted(source, tmp_path / "out", 2)
    twice = {n: v * 2 for n, v in open_checkpoint(source).items()}
    save_file(weights, twice, {"format": "pt"})
    os.utime(weights, (0, 0))
    quantize(source, tmp_path / "out", QUICK)
    quantize(source, tmp_path / "whole", QUICK)
    assert bits(tmp_path / "out") == bits(tmp_path / "whole")


def test_a_job_writes_nothing_behind_a_link(tmp_path: Path) -> None:
    """Also where what the link leads to looks like a job of weft's."""
    source, out = small(tmp_path / "m"), tmp_path / "out"
    outside = tmp_path / "outside"
    outside.mkdir()
    decoys = dict.fromkeys((STATE, "model-00001-of-00002.safetensors", "my.txt"), b"decoy")
    decoys[STATE] = b"{}"
    for name, data in decoys.items():
        (outside / name).write_bytes(data)
    link = out.with_name(f".{out.name}.quantizing")
    link.symlink_to(outside)
    with pytest.raises(OSError, match="is a link"):
        quantize(source, out, QUICK)
    assert {p.name: p.read_bytes() for p in outside.iterdir()} == decoys


# -- budgets ---------------------------------------------------------------------------------------


def test_a_large_model_drives_out_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """202 kernels and one kept model that is larger than all kernels may be, and than all models
    may be, by itself."""
    kernels = disk.kernels()
    for i in range(202):
        kernels.put(f"kernel {i}", bytes(100))
    monkeypatch.setattr(kept_, "PACKED", kept := Tensors("quantised", 5_000))
    kernels.limit = 60_000
    big = {"a": np.zeros(20_000, np.float32)}
    for _ in range(3):
        kept.save("big", big, {})
        kernels.prune()
        assert all(kernels.get(f"kernel {i}") for i in range(202))
        found = kept.load("big")
        assert found is not None and found["a"].nbytes == 80_000


def test_the_model_used_least_recently_goes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, one = Tensors("quantised", 10_000), {"a": np.ones(500, np.float32)}
    shelf = kept.shelf
    assert shelf is not None
    for i, name in enumerate("abcd"):
        kept.save(name, one, {})
        path = kept._path(shelf, name)
        os.utime(path, (i, i))
    assert kept.load("a") is not None  # now the newest, though its own times are the oldest
    kept.save("e", one, {})
    assert [n for n in "abcde" if kept.load(n) is not None] == ["a", "d", "e"]


def test_programs_and_kernels_have_budgets_of_their_own() -> None:
    assert disk.programs().directory != disk.kernels().directory
    assert disk.programs().limit == disk.PROGRAMS and disk.kernels().limit == disk.KERNELS


def test_an_entry_that_would_empty_the_cache_is_not_kept(tmp_path: Path) -> None:
    cache = disk.DiskCache(tmp_path / "c", 10_000)
    for i in range(10):
        cache.put(str(i), bytes(200))
    cache.put("large", bytes(9_000))
    cache.prune()
    assert cache.get("large") is None and all(cache.get(str(i)) for i in range(10))


def test_pruning_knows_its_own(tmp_path: Path) -> None:
    """A cache in a folder of other things (WEFT_CACHE=~/.cache): those are not counted nor
    removed, also behind links."""
    outside = tmp_path / "outside"
    outside.mkdir()
    others = [tmp_path / "c" / "other" / "file", tmp_path / "c" / "ab" / "notes.txt",
              tmp_path / "c" / "mine.txt", tmp_path / "c" / "quantised" / ("0" * 62),
              outside / ("0" * 62)]  # fmt: skip
    cache = disk.DiskCache(tmp_path / "c")
    for i in range(20):
        cache.put(str(i), bytes(400))
    cache.limit = 4_000
    for path in others:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(bytes(10_000))
        os.utime(path, (0, 0))
    (tmp_path / "c" / "ff").symlink_to(outside)
    (tmp_path / "c" / "ab" / ("1" * 62)).symlink_to(outside / ("0" * 62))
    freed = cache.prune()
    assert freed and all(p.stat().st_size == 10_000 for p in others)
    assert sum(e.size for e in cache.shelf.entries()) <= 4_000  # type: ignore[union-attr]


def test_what_killed_processes_left_goes_in_time(tmp_path: Path) -> None:
    shelf = CacheFolder(tmp_path, re.compile("x"), None, 100)
    for name, age in ((".x.0123abcd.weft-new", 7200), (".y.0123abcd.weft-new", 0), (".z", 7200)):
        (tmp_path / name).write_bytes(b"half")
        os.utime(tmp_path / name, (time.time() - age,) * 2)
    assert shelf.prune() == 4
    assert sorted(p.name for p in tmp_path.iterdir()) == [".y.0123abcd.weft-new", ".z"]


def test_uses_are_noted_where_the_system_does_not(tmp_path: Path) -> None:
    cache = disk.DiskCache(tmp_path / "c")
    cache.put("a", b"code")
    (entry,) = cache.shelf.entries()  # type: ignore[union-attr]
    os.utime(entry.path, (0, 0))
    assert cache.get("a") == b"code"
    (entry,) = cache.shelf.entries()  # type: ignore[union-attr]
    assert time.time() - entry.path.stat().st_mtime < 1000
