"""What weft keeps of models is believed only where it is what it kept, of the same model, and this
user's; what is kept of one kind drives out no other."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from test_quantize_hostile import QUICK, small

from weft.core.budget import CacheFolder
from weft.host import cache as disk
from weft.importers.safetensors import SafetensorsFile, open_checkpoint, save_file
from weft.models import load
from weft.models.weights import content
from weft.models.weights.content import content_digest, model_digests
from weft.models.weights.kept_tensors import Tensors
from weft.quantize import kept as kept_, search as search_
from weft.quantize.job import quantize
from weft.quantize.resume import STATE
from weft.quantize.search import Search

posix = pytest.mark.skipif(os.name != "posix", reason="owners and modes are POSIX's")
PROMPT = [1, 2, 3]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(search_, "STEPS", {4: 1, 5: 1, 8: 1})
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "cache"))


@pytest.fixture(params=["unsettled", "settled"])
def settled(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Files that are as new as in a test; or that count as old enough to go by what the system
    says of them."""
    if request.param == "settled":
        monkeypatch.setattr(content, "_SETTLED", -(1 << 62))
    return str(request.param)


def logits(folder: Path) -> np.ndarray:
    return load(folder, quant="int4", device="oracle").logits(PROMPT)


def searches(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What was searched for from now on."""
    real, found = Search.__call__, []

    def counted(self: Search, *args: object) -> object:
        found.append(self)
        return real(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(Search, "__call__", counted)
    return found


def kept_file(tmp_path: Path) -> Path:
    (path,) = (tmp_path / "cache" / "quantised").iterdir()
    return path


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


def sign(path: Path) -> None:
    def change(data: bytearray) -> None:
        at = place(path, "0.q.w.scales").start
        data[at + 1] ^= 0x80

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


def rename(path: Path) -> None:
    """Two layers' names are exchanged in the header, whose length stays."""

    def change(data: bytearray) -> None:
        head = slice(8, 8 + int.from_bytes(data[:8], "little"))
        text = data[head].replace(b'"0.q.w.codes"', b'"X.q.w.codes"')
        text = text.replace(b'"1.q.w.codes"', b'"0.q.w.codes"')
        data[head] = text.replace(b'"X.q.w.codes"', b'"1.q.w.codes"')

    rewrite(path, change)


def other_scheme(path: Path) -> None:
    """Whole and well-formed, but other numbers, with the old metadata."""
    file = SafetensorsFile(path)
    parts = {n: v.copy() for n, v in file.items()}
    parts["0.q.w.scales"] *= 2
    save_file(path, parts, file.metadata)
    path.chmod(0o600)


def anothers(path: Path) -> None:
    """A file that another key's cache holds under this name."""
    file = SafetensorsFile(path)
    parts = {n: np.zeros_like(v) for n, v in file.items()}
    said = dict(file.metadata)
    from weft.models.weights.kept_tensors import _digests

    said["digests"] = json.dumps(_digests(parts))
    save_file(path, parts, said)
    path.chmod(0o600)


HARMS = [flip, sign, zero, swap, rename, other_scheme, anothers]


@pytest.mark.parametrize("harm", HARMS, ids=lambda f: f.__name__)
def test_what_was_changed_is_made_anew(
    tmp_path: Path, harm: Callable[[Path], None], settled: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = small(tmp_path / "m", layers=2)
    first = logits(source)
    made = searches(monkeypatch)
    assert np.array_equal(logits(source), first) and not made  # it is kept
    harm(kept_file(tmp_path))
    assert np.array_equal(logits(source), first) and made
    made.clear()
    assert np.array_equal(logits(source), first) and not made


@posix
@pytest.mark.parametrize("harm", ["mode", "owner", "link", "hard link", "folder", "fifo", "parent"])
def test_what_others_may_have_written_is_made_anew(
    tmp_path: Path, harm: str, settled: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if harm == "owner" and os.geteuid():
        pytest.skip("only root can give files away")
    source = small(tmp_path / "m")
    first = logits(source)
    path, aside = kept_file(tmp_path), tmp_path / "aside"
    if harm == "mode":
        path.chmod(0o666)
    elif harm == "owner":
        os.chown(path, 65534, -1)
    elif harm == "parent":
        path.parent.chmod(0o777)
    else:
        path.rename(aside)
        if harm == "link":
            path.symlink_to(aside)
        elif harm == "hard link":
            path.hardlink_to(aside)
        else:
            path.mkdir() if harm == "folder" else os.mkfifo(path)
    made = searches(monkeypatch)
    assert np.array_equal(logits(source), first) and made


@posix
def test_what_is_kept_is_the_users_alone(tmp_path: Path) -> None:
    os.umask(was := os.umask(0))
    os.umask(0)
    try:
        logits(small(tmp_path / "m"))
    finally:
        os.umask(was)
    path = kept_file(tmp_path)
    assert path.stat().st_mode & 0o777 == 0o600 and path.parent.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("how", ["in place", "replaced", "config"])
def test_another_model_of_the_same_size_and_times(
    tmp_path: Path, how: str, settled: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = small(tmp_path / "m")
    weights, config = source / "model.safetensors", source / "config.json"
    for path in (weights, config):
        os.utime(path, (0, 0))
    first = logits(source)
    if how == "config":
        config.write_text(config.read_text().replace("1e-05", "2e-05"))
    else:
        other = {n: -v for n, v in open_checkpoint(source).items()}
        save_file(tmp_path / "other", other, {"format": "pt"})
        if how == "replaced":
            (tmp_path / "other").rename(weights)
        else:
            weights.write_bytes((tmp_path / "other").read_bytes())
    for path in (weights, config):
        os.utime(path, (0, 0))
    made = searches(monkeypatch)
    again = logits(source)
    assert made and (how == "config" or not np.array_equal(again, first))
    monkeypatch.setenv("WEFT_CACHE", "off")
    assert np.array_equal(logits(source), again)


def test_the_same_model_elsewhere_is_the_same(
    tmp_path: Path, settled: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = logits(small(tmp_path / "m"))
    made = searches(monkeypatch)
    assert np.array_equal(logits(small(tmp_path / "copy")), first) and not made


def test_a_model_that_changes_meanwhile_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = small(tmp_path / "m")
    real = Search.__call__

    def changing(self: Search, *args: object) -> object:
        with (source / "config.json").open("a") as file:
            file.write(" ")
        return real(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(Search, "__call__", changing)
    logits(source)
    assert not (tmp_path / "cache" / "quantised").exists()


def test_a_digest_is_known_until_the_file_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"one")
    read: list[object] = []
    real = content.hashlib.file_digest
    monkeypatch.setattr(
        content.hashlib, "file_digest", lambda f, kind: (read.append(f), real(f, kind))[1]
    )
    first = content_digest(path)
    assert content_digest(path) == first and len(read) == 2  # too new to be sure
    monkeypatch.setattr(content, "_SETTLED", -(1 << 62))
    read.clear()
    assert [content_digest(path) for _ in range(3)] == [first] * 3 and len(read) == 1
    for change in (
        lambda: path.write_bytes(b"two"),
        lambda: (path.unlink(), path.write_bytes(b"six")),
        lambda: ((tmp_path / "g").write_bytes(b"ten"), (tmp_path / "g").rename(path)),
    ):
        was = path.stat()
        change()
        os.utime(path, ns=(was.st_atime_ns, was.st_mtime_ns))
        found = content_digest(path)
        assert found != first
        first = found


def test_an_index_is_of_the_model(tmp_path: Path) -> None:
    source = small(tmp_path / "m")
    (source / "model.safetensors.index.json").write_text("{}")
    assert len(model_digests(source)) == 3


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


@pytest.mark.parametrize("harm", ["flip", "swap", "cut", "zero", "mode", "gone", "link", "state"])
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
    monkeypatch.setattr(kept_, "KEPT", kept := Tensors("quantised", 5_000))
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
    cache = disk.DiskCache(tmp_path / "c", 4_000)
    for i in range(20):
        cache.put(str(i), bytes(400))
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
