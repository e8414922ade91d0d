"""`weft rm` removes what weft keeps, by the names of `weft list`, and nothing else."""

# ruff: noqa: F811 (a fixture of another file)

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from gguf_zoo import write_gguf
from hub_kit import MODEL, TINY, hub  # noqa: F401
from hub_server import Hub

import weft
from weft.cli import loading
from weft.cli.main import invoke
from weft.hub.box import box_folder
from weft.hub.names import Name, cache
from weft.hub.resolve import resolve
from weft.models.weights.kept_tensors import PACKED
from weft.models.weights.random_weights import random_folder

WEIGHTS = "model.safetensors"
STORE = Name("loom/a").store.name
LATER = {**MODEL, "config.json": MODEL["config.json"] + b"\n"}


@pytest.fixture(autouse=True)
def own_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test of this file may touch a cache that is not its own."""
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "weft"))
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        monkeypatch.delenv(name, raising=False)
    assert PACKED.shelf is not None and PACKED.shelf.folder.is_relative_to(tmp_path)
    assert cache().is_relative_to(tmp_path)


def tree(folder: Path) -> dict[str, bytes | str]:
    """Each file's bytes and each link's target."""
    return {
        str(p.relative_to(folder)): os.readlink(p) if p.is_symlink() else p.read_bytes()
        for p in sorted(folder.rglob("*")) if p.is_symlink() or p.is_file()
    }  # fmt: skip


def listed(capsys: pytest.CaptureFixture[str]) -> list[str]:
    capsys.readouterr()
    assert invoke(["list", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    return [m["name"] for m in found["models"]] + [w["name"] for w in found["kept"]["quantised"]]


@pytest.fixture
def model(hub: Hub) -> Path:
    hub.add("loom/a", MODEL)
    hub.add("loom/b", MODEL)
    resolve("loom/b")
    return resolve("loom/a")


def test_a_model_goes_with_all_that_was_its_own(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tree(cache() / Name("loom/b").store.name)
    size = sum(p.stat().st_size for p in (cache() / STORE).rglob("*") if not p.is_symlink()
               and p.is_file())  # fmt: skip
    assert listed(capsys) == ["loom/a", "loom/b"]
    assert invoke(["rm", "loom/a", "--yes", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["removed"][0]["name"] == "loom/a" and said["freed"] == size
    assert not (cache() / STORE).exists() and not (cache() / ".locks" / STORE).exists()
    assert tree(cache() / Name("loom/b").store.name) == other
    assert listed(capsys) == ["loom/b"]
    assert invoke(["rm", "loom/a", "--yes"]) == 2  # it is gone


def test_blobs_of_another_revision_stay(hub: Hub, model: Path,
                                        capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    hub.add("loom/a", LATER, ref="v2")
    later = resolve("loom/a@v2")
    assert (model / WEIGHTS).resolve() == (later / WEIGHTS).resolve()
    before = {p.name: p.read_bytes() for p in later.iterdir()}
    assert sorted(listed(capsys)) == ["loom/a", "loom/a@v2", "loom/b"]
    assert invoke(["rm", "loom/a", "-y"]) == 0
    assert not model.exists() and not (cache() / STORE / "refs/main").exists()
    assert {p.name: p.read_bytes() for p in later.iterdir()} == before
    assert listed(capsys) == ["loom/a@v2", "loom/b"]
    assert invoke(["rm", "loom/a@v2", "-y"]) == 0 and not (cache() / STORE).exists()


def test_one_gguf_file_of_several(
    hub: Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files: dict[str, bytes] = {"README.md": b"hi"}
    for name, wide in (("g-Q8_0", 32), ("g-F32", 64)):
        folder = random_folder(tmp_path / name, {**TINY, "intermediate_size": wide})
        files[f"{name}.gguf"] = write_gguf(folder, tmp_path / f"{name}.gguf").read_bytes()
    hub.add("loom/g", files)
    for part in ("g-Q8_0.gguf", "g-F32.gguf"):
        resolve(f"loom/g:{part}")
    assert listed(capsys) == ["loom/g:g-F32.gguf", "loom/g:g-Q8_0.gguf"]
    assert invoke(["rm", "loom/g", "-y"]) == 2  # which of them?
    assert "do you mean loom/g:g-F32.gguf or loom/g:g-Q8_0.gguf?" in capsys.readouterr().err
    assert invoke(["rm", "loom/g:g-F32.gguf", "-y"]) == 0
    assert listed(capsys) == ["loom/g:g-Q8_0.gguf"]
    assert len([*(Name("loom/g").store / "blobs").iterdir()]) == 1
    assert invoke(["rm", "loom/g:g-Q8_0.gguf", "-y"]) == 0
    assert not Name("loom/g").store.exists()


def test_quantised_weights(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "own" / "model"
    shutil.copytree(box_folder(), folder)
    weft.load(folder, device="cpu", quant="int8")
    assert PACKED.shelf is not None
    mine = PACKED.shelf.folder / "notes.txt"
    mine.write_text("not weft's")
    before, name = tree(folder), f"{folder.resolve()}+int8"
    assert name in listed(capsys)
    assert invoke(["rm", str(folder), "--yes"]) == 2  # the user's own folder
    assert "weft list" in capsys.readouterr().err
    assert invoke(["rm", name, "--yes"]) == 0
    assert name not in listed(capsys)
    assert [p.name for p in PACKED.shelf.folder.iterdir() if p.is_file()] == ["notes.txt"]
    assert tree(folder) == before


# -- asking ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("answer", "status"), [("y", 0), ("n", 1), ("", 1)])
def test_it_asks_on_a_terminal(
    model: Path, answer: str, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    import click

    monkeypatch.setattr("weft.cli.hub.on_terminal", lambda: True)
    monkeypatch.setattr(click, "confirm", lambda text, default, err: answer == "y" or default)
    assert invoke(["rm", "loom/a"]) == status
    assert model.exists() == (status != 0)


def test_without_a_terminal_it_wants_yes(
    model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "on_terminal", lambda: False)
    assert invoke(["rm", "loom/a"]) == 2
    assert "--yes" in capsys.readouterr().err and model.exists()


@pytest.mark.parametrize(
    "name",
    ["box", "box-chat", "nothing", "loom/none", "/etc", "..", ".", "", "loom/a/../b", "+int8"],
)
def test_what_weft_does_not_keep(
    model: Path, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    before = tree(cache())
    assert invoke(["rm", "--yes", "--", name]) == 2
    assert invoke(["rm", "--yes", "loom/a", name]) == 2  # nothing goes where one name is wrong
    assert tree(cache()) == before and box_folder().is_dir()


# -- decoys and links ------------------------------------------------------------------------------


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    folder = tmp_path / "outside"
    folder.mkdir()
    for name in MODEL:
        (folder / name).write_bytes(b"my own " + name.encode())
    return folder


@pytest.mark.parametrize("kind", ["file", "blob", "hard", "folder", "extra"])
def test_targets_of_links_stay(model: Path, outside: Path, kind: str) -> None:
    mine, link = outside / WEIGHTS, model / WEIGHTS
    before = tree(outside)
    if kind == "file":  # a link of the snapshot leads outside
        link.unlink()
        link.symlink_to(mine)
    elif kind == "blob":  # the blob is a link itself
        blob = link.resolve()
        blob.unlink()
        blob.symlink_to(mine)
    elif kind == "hard":
        blob = link.resolve()
        blob.unlink()
        blob.hardlink_to(mine)
    elif kind == "folder":
        (model / "more").symlink_to(outside)
    else:
        (model / "photo.png").write_bytes(b"a file that somebody put there")
    assert invoke(["rm", "loom/a", "--yes"]) == 0
    assert tree(outside) == before and not model.exists()


@pytest.mark.parametrize("place", ["blobs", "snapshots", "refs", "."])
def test_a_folder_that_is_a_link(
    hub: Hub, model: Path, tmp_path: Path, place: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Another revision stays, so that files go one by one; none behind the link does."""
    hub.add("loom/a", LATER, ref="v2")
    resolve("loom/a@v2")
    store = Name("loom/a").store
    there = tmp_path / "moved"
    (store / place).rename(there)
    (store / place).symlink_to(there)
    before = tree(there)
    status = invoke(["rm", "loom/a", "--yes"])
    assert tree(there) == before and "Traceback" not in capsys.readouterr().err
    assert status == (2 if place == "snapshots" else 1)


def test_a_link_in_place_of_the_repository(model: Path, tmp_path: Path) -> None:
    """The link goes; the folder that it leads to, and all in it, stays."""
    store, there = Name("loom/a").store, tmp_path / "moved"
    store.rename(there)
    store.symlink_to(there)
    before = tree(there)
    invoke(["rm", "loom/a", "--yes"])
    assert tree(there) == before


def test_quantised_weights_behind_a_link(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weft.load(box_folder(), device="cpu", quant="int8")
    assert PACKED.shelf is not None
    folder, there = PACKED.shelf.folder, tmp_path / "moved"
    folder.rename(there)
    folder.symlink_to(there)
    before = tree(there)
    for name in [n for n in listed(capsys) if n.endswith("+int8")]:
        assert invoke(["rm", name, "--yes"]) == 1
    assert tree(there) == before
