"""Of huggingface_hub's cache weft removes and writes what lies in the store itself, whatever the
links in it say."""

# ruff: noqa: F811 (a fixture of another file)

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hub_kit import MODEL, hub, refused  # noqa: F401
from hub_server import Hub
from rows import covering

from weft.cli.main import invoke
from weft.core.errors import HubError
from weft.host import cache as disk
from weft.hub.names import Name, cache
from weft.hub.resolve import resolve
from weft.models.weights.kept_tensors import PACKED

FILES = sorted(MODEL)
STORE = Name("loom/a").store.name


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """Files of the user's own, of the names that a cache has too."""
    folder = tmp_path / "outside"
    (folder / "1_Pooling").mkdir(parents=True)
    for name in (*FILES, "x.incomplete", "main", "x.lock", "1_Pooling/config.json"):
        (folder / name).write_bytes(b"my own " + name.encode())
        os.utime(folder / name, (0, 0))
    return folder


def content(folder: Path) -> dict[str, bytes]:
    return {str(p): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def damaged(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model that was fetched, and that weft has not looked at yet."""
    hub.add("loom/a", MODEL)
    folder = resolve("loom/a")
    for mark in Path(os.environ["WEFT_CACHE"]).glob("hub/*"):
        mark.unlink()
    return folder


@pytest.mark.parametrize(
    "file, kind", covering(FILES, ["absolute", "relative", "chain", "blob", "hard", "dots"])
)
def test_a_link_that_leads_outside(
    hub: Hub, outside: Path, monkeypatch: pytest.MonkeyPatch, file: str, kind: str,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    folder = damaged(hub, monkeypatch)
    link, mine, was = folder / file, outside / file, content(outside)
    blob = link.resolve()
    if kind == "blob":  # the blob itself is a link
        blob.unlink()
        blob.symlink_to(mine)
    elif kind == "hard":
        blob.unlink()
        blob.hardlink_to(mine)
    else:
        link.unlink()
        if kind == "chain":
            (folder / "between").symlink_to(mine)
            link.symlink_to("between")
        elif kind == "dots":  # by way of blobs/
            way = os.path.relpath(blob.parent, folder)
            link.symlink_to(f"{way}/../../../../outside/{file}")
        else:
            link.symlink_to(mine if kind == "absolute" else os.path.relpath(mine, folder))
    assert link.read_bytes() == b"my own " + file.encode()
    if kind in ("relative", "hard"):
        assert invoke(["pull", "loom/a"]) == 1
        said = capsys.readouterr().err
    else:
        said = refused("loom/a")
    assert content(outside) == was and f"{file} is damaged" in said
    if kind in ("blob", "hard"):
        assert "it was removed from the cache; try again" in said
    else:
        assert "is a link to" in said and link.is_symlink()
        link.unlink()  # as the message says
    assert resolve("loom/a") == folder and link.read_bytes() == MODEL[file]
    assert content(outside) == was


def test_a_link_to_another_files_blob_costs_only_the_link(
    hub: Hub,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = damaged(hub, monkeypatch)
    one, other = (folder / name for name in FILES)
    blob = other.resolve()
    one.unlink()
    one.symlink_to(os.path.relpath(blob, folder))
    refused("loom/a")
    assert blob.exists() and other.exists() and not one.is_symlink()
    resolve("loom/a")
    assert hub.sent().count(other.name) == 1


def test_a_file_in_a_links_place_stays(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """As an editor leaves it, that writes another file and renames it."""
    folder = damaged(hub, monkeypatch)
    (folder / "config.json").unlink()
    (folder / "config.json").write_bytes(b"{} edited")
    assert "is not a link into blobs/" in refused("loom/a")
    assert (folder / "config.json").read_bytes() == b"{} edited"


def test_without_links_a_damaged_file_is_fetched_again(
    hub: Hub,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import huggingface_hub.file_download as download

    monkeypatch.setattr(download, "are_symlinks_supported", lambda *_: False)
    hub.add("loom/a", MODEL)
    hub.sends["config.json"] = b"other"
    assert "it was removed from the cache; try again" in refused("loom/a")
    hub.sends.clear()
    assert not (resolve("loom/a") / "config.json").is_symlink()


@pytest.mark.parametrize(
    "part, relative",
    covering(["blobs", "snapshots", "snapshots/COMMIT", ".", "1_Pooling"], [True, False]),
)
def test_a_folder_of_the_store_that_is_a_link(
    hub: Hub,
    outside: Path,
    part: str,
    relative: bool,
) -> None:
    """Nothing is fetched into it, and nothing in it is cleared away."""
    more = {"modules.json": b"[]", "1_Pooling/config.json": b"{}"}
    commit = hub.add("loom/a", MODEL | more)
    store, was = cache() / STORE, content(outside)
    place = store / part.replace("COMMIT", commit)
    if part == "1_Pooling":
        place = store / "snapshots" / commit / part
        (outside / "1_Pooling" / "config.json").unlink()
        was = content(outside)
    if commit in place.parts:  # what weft looks for is there, but for the weights
        for name in FILES[:1]:
            (outside / name).write_bytes(MODEL[name])
        (outside / "model.safetensors").unlink()
        was = content(outside)
    place.parent.mkdir(parents=True)
    target = outside / "1_Pooling" if part == "1_Pooling" else outside
    place.symlink_to(os.path.relpath(target, place.parent) if relative else target)
    said = refused("loom/a")
    assert "is a link, and weft changes nothing behind it" in said
    assert content(outside) == was and "model.safetensors" not in hub.sent()
    place.unlink()
    assert resolve("loom/a").is_dir() and content(outside) == was


@pytest.mark.parametrize("where", [".locks", f".locks/{STORE}", "lock"])
def test_locks_that_are_links(hub: Hub, outside: Path, where: str) -> None:
    hub.add("loom/a", MODEL)
    was = content(outside)
    place = cache() / where
    if where == "lock":
        place = cache() / ".locks" / STORE / "x.lock"
    place.parent.mkdir(parents=True)
    place.symlink_to(outside / "x.lock" if where == "lock" else outside)
    assert "is a link" in refused("loom/a") and content(outside) == was


def test_half_fetched_files_that_are_links(hub: Hub, outside: Path) -> None:
    """A version of the library that goes on with them would write to what they lead to."""
    hub.add("loom/a", MODEL)
    blobs, was = cache() / STORE / "blobs", content(outside)
    blobs.mkdir(parents=True)
    (blobs / "a.incomplete").symlink_to(outside / "x.incomplete")
    (blobs / "b.incomplete").hardlink_to(outside / "x.incomplete")
    (blobs / "c.incomplete").symlink_to(outside)
    resolve("loom/a")
    assert not list(blobs.glob("*.incomplete")) and content(outside) == was


def test_a_revision_is_not_noted_behind_a_link(hub: Hub, outside: Path) -> None:
    hub.add("loom/a", MODEL)
    was = content(outside)
    (cache() / STORE).mkdir(parents=True)
    (cache() / STORE / "refs").symlink_to(outside)
    assert resolve("loom/a").is_dir() and content(outside) == was


def test_a_cache_behind_a_link_is_a_cache(
    hub: Hub,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "hf").symlink_to(tmp_path / "disk")
    folder = damaged(hub, monkeypatch)
    (folder / "config.json").resolve().write_bytes(b"{}")
    refused("loom/a")
    assert resolve("loom/a") == folder


def test_a_folder_in_a_files_place_is_said_to_be_one(
    hub: Hub,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = damaged(hub, monkeypatch)
    link = folder / "config.json"
    blob = link.resolve()
    link.unlink()
    link.mkdir()
    assert "config.json is a folder, and a file belongs there" in refused("loom/a")
    link.rmdir()
    blob.unlink()
    blob.mkdir()
    assert f"{blob.name} is a folder, and a file belongs there" in refused("loom/a")
    blob.rmdir()
    os.mkfifo(blob)
    said = refused("loom/a")
    assert "no file is there" in said and "removed" in said
    assert resolve("loom/a") == folder


def test_what_the_hub_says_is_not_a_path_to_change(
    hub: Hub,
    outside: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever a link reads like, its last name is one in blobs/, or nothing goes."""
    folder = damaged(hub, monkeypatch)
    link, was = folder / "config.json", content(outside)
    blobs = cache() / STORE / "blobs"
    for target in (blobs / "..", blobs / ".", blobs, "../../blobs/../blobs/..", "/", "."):
        link.unlink()
        link.symlink_to(target)
        with pytest.raises(HubError):
            resolve("loom/a")
        assert link.is_symlink() and blobs.is_dir() and content(outside) == was


def test_marks_are_not_written_behind_a_link(
    hub: Hub,
    outside: Path,
    tmp_path: Path,
) -> None:
    hub.add("loom/a", MODEL)
    (tmp_path / "weft").mkdir()
    (tmp_path / "weft" / "hub").symlink_to(outside)
    was: dict[str, Any] = content(outside)
    assert json.loads((resolve("loom/a") / "config.json").read_bytes())
    assert content(outside) == was


def test_a_dead_redirect_is_said_to_be_one(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """Large files lie elsewhere: what fails there says nothing of the name or of the hub."""
    monkeypatch.setattr(time, "sleep", lambda _: None)
    hub.add("loom/a", MODEL)
    own = hub.large
    for large, there in (
        ("http://127.0.0.1:9", "127.0.0.1"), (f"{hub.url}/gone", "127.0.0.1"),
        (f"{own}/gone", "localhost"), ("ftp://localhost/x", "localhost"),
    ):  # fmt: skip
        hub.large = large
        said = refused("loom/a")
        assert f"model.safetensors: {hub.url} sent us on to {there}, which" in said, said
        assert "no such model" not in said and "cannot be reached" not in said
    hub.large = own
    assert resolve("loom/a").is_dir()


# -- weft list -------------------------------------------------------------------------------------


def test_list_shows_and_prunes_what_is_kept(
    hub: Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def kept() -> dict[str, Any]:
        capsys.readouterr()
        assert invoke(["list", "--json"]) == 0
        found: dict[str, Any] = json.loads(capsys.readouterr().out)["kept"]
        return found

    weights = {"a": np.ones(1000, np.float32)}
    (tmp_path / "here").mkdir()
    for name in ("here", "gone"):
        PACKED.save(name, weights, {"source": str(tmp_path / name), "scheme": "int4"})
    disk.kernels().put("k", bytes(100))
    disk.programs().put("p", bytes(100))
    old = tmp_path / "weft" / "quantised" / f"{'0' * 32}.safetensors"  # an earlier weft's
    old.write_bytes(bytes(500))
    found = kept()
    assert {k["kind"]: k["files"] for k in found["kinds"]} == {
        "kernels": 3, "programs": 1, "quantised weights": 3,
    }  # fmt: skip
    assert {w["source"] for w in found["quantised"]} == {
        "", str(tmp_path / "here"), str(tmp_path / "gone"),
    }  # fmt: skip
    assert invoke(["list"]) == 0
    said = capsys.readouterr().out
    assert "quantised weights" in said and str(tmp_path / "gone") in said and "32.0 GiB" in said
    assert invoke(["list", "--prune"]) == 0 and "weft: freed 4.8 KiB" in capsys.readouterr().err
    found = kept()
    assert [w["source"] for w in found["quantised"]] == [str(tmp_path / "here")]
    assert sum(k["files"] for k in found["kinds"]) == 5 and not old.exists()
    monkeypatch.setenv("WEFT_CACHE", "off")
    assert kept()["kinds"] == [] and invoke(["list", "--prune"]) == 0
