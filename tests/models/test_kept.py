"""What weft keeps of models is believed only where it is what it kept, of the same model, and this
user's; what is kept of one kind drives out no other."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from kept_kit import flip, place, quick, rewrite, searches, swap, zero  # noqa: F401
from rows import by_turns
from test_quantize_hostile import small

from weft.importers.safetensors import SafetensorsFile, open_checkpoint, save_file
from weft.models import load
from weft.models.weights import content
from weft.models.weights.content import content_digest, model_digests
from weft.quantize.search import Search

posix = pytest.mark.skipif(os.name != "posix", reason="owners and modes are POSIX's")
PROMPT = [1, 2, 3]


AGES = ["unsettled", "settled"]


@pytest.fixture(params=AGES)
def settled(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Files that are as new as in a test; or that count as old enough to go by what the system
    says of them."""
    if request.param == "settled":
        monkeypatch.setattr(content, "_SETTLED", -(1 << 62))
    return str(request.param)


def logits(folder: Path) -> np.ndarray:
    return load(folder, quant="int4", device="oracle").logits(PROMPT)


def kept_file(tmp_path: Path) -> Path:
    (path,) = (tmp_path / "cache" / "quantised").iterdir()
    return path


def sign(path: Path) -> None:
    def change(data: bytearray) -> None:
        at = place(path, "0.q.w.scales").start
        data[at + 1] ^= 0x80

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


@pytest.mark.parametrize(
    "harm,settled",
    by_turns([pytest.param(harm, id=harm.__name__) for harm in HARMS], AGES),
    indirect=["settled"],
)
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
@pytest.mark.parametrize(
    "harm,settled",
    by_turns(["mode", "owner", "link", "hard link", "folder", "fifo", "parent"], AGES),
    indirect=["settled"],
)
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


@pytest.mark.parametrize(
    "how, settled",
    by_turns(["in place", "replaced", "config"], AGES),
    indirect=["settled"],
)
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
    assert not list((tmp_path / "cache" / "quantised").glob("*"))


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
