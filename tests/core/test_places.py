"""Nothing outside the stated folder is removed, renamed or replaced, whatever links lead there."""

from __future__ import annotations

import ast
import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import weft
from weft.core import places
from weft.core.errors import StorageError
from weft.core.places import check_inside, move, remove, remove_empty, remove_tree, replace
from weft.host.files import owned, remove_folder, replacing_folder, sweep, write_bytes

Change = Callable[[Path, Path], None]
CHANGES: dict[str, Change] = {
    "remove": remove,
    "remove_tree": remove_tree,
    "remove_empty": remove_empty,
    "move": lambda path, root: move(path, root / "gone", root),
    "move to": lambda path, root: move(root / "mine", path, root),
    "replace": lambda path, root: replace(root / "mine", path, root),
    "remove_folder": remove_folder,
}


@pytest.fixture
def tree(tmp_path: Path) -> tuple[Path, Path]:
    """A root with a file of its own, and a folder outside with decoys."""
    root, outside = tmp_path / "root", tmp_path / "outside"
    for folder in (root, root / "inner", outside, outside / "folder"):
        folder.mkdir()
    (root / "mine").write_bytes(b"mine")
    for place in (outside, outside / "folder"):
        (place / "decoy").write_bytes(b"decoy")
    return root, outside


def untouched(outside: Path) -> bool:
    found = sorted(p.relative_to(outside).as_posix() for p in outside.rglob("*"))
    whole = found == ["decoy", "folder", "folder/decoy"]
    return whole and all(p.read_bytes() == b"decoy" for p in outside.rglob("decoy"))


def links(root: Path, outside: Path) -> list[Path]:
    """Paths below `root` that lead to the decoys through a link to a folder."""
    (root / "absolute").symlink_to(outside)
    (root / "relative").symlink_to("../outside")
    (root / "inner" / "up").symlink_to("../../outside/folder")
    (root / "chain").symlink_to("absolute")
    (root / "circle").symlink_to("circle")
    return [
        root / "absolute" / "decoy", root / "relative" / "decoy", root / "inner" / "up" / "decoy",
        root / "chain" / "decoy", root / "absolute" / "folder" / "decoy", root / "circle" / "decoy",
        root / ".." / "outside" / "decoy", root / "inner" / ".." / ".." / "outside" / "decoy",
        outside / "decoy", root,
    ]  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("by_folder", [True, False])
def test_no_link_to_a_folder_is_followed(
    tree: tuple[Path, Path], change: str, by_folder: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, outside = tree
    monkeypatch.setattr(places, "_BY_FOLDER", by_folder and places._BY_FOLDER)
    for path in links(root, outside):
        with pytest.raises(StorageError) as caught:
            CHANGES[change](path, root)
        assert caught.value.errno == errno.EXDEV and "changes nothing" in str(caught.value)
    assert untouched(outside) and (root / "mine").read_bytes() == b"mine"


@pytest.mark.parametrize("change", ["remove", "remove_tree", "move", "replace", "remove_folder"])
@pytest.mark.parametrize("kind", ["file", "folder", "chain", "hard", "dangling"])
def test_of_a_link_the_link_goes(tree: tuple[Path, Path], change: str, kind: str) -> None:
    root, outside = tree
    path = root / "link"
    if kind == "hard":
        path.hardlink_to(outside / "decoy")
    elif kind == "chain":
        (root / "between").symlink_to(outside / "decoy")
        path.symlink_to("between")
    else:
        path.symlink_to({"file": outside / "decoy", "folder": outside}.get(kind, "nowhere"))
    CHANGES[change](path, root)
    assert untouched(outside)
    if change == "replace":
        assert not path.is_symlink() and path.read_bytes() == b"mine"
    else:
        assert not os.path.lexists(path)


def test_a_tree_goes_without_what_its_links_lead_to(tree: tuple[Path, Path]) -> None:
    root, outside = tree
    (root / "inner" / "deep").mkdir()
    (root / "inner" / "deep" / "link").symlink_to(outside)
    (root / "inner" / "file").symlink_to(outside / "decoy")
    (root / "inner" / "hard").hardlink_to(outside / "decoy")
    remove_tree(root / "inner", root)
    assert not (root / "inner").exists() and untouched(outside)


def test_a_root_behind_a_link_is_the_callers_choice(tree: tuple[Path, Path]) -> None:
    root, _ = tree
    (root.parent / "chosen").symlink_to(root)
    remove(root.parent / "chosen" / "mine", root.parent / "chosen")
    assert not (root / "mine").exists()


@pytest.mark.skipif(not places._BY_FOLDER, reason="without folders' handles a race is not caught")
def test_a_folder_that_becomes_a_link_meanwhile(
    tree: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder is changed for a link between looking and acting, at every step there is."""
    root, outside = tree
    real, opened, when = os.open, 0, 0

    def swapped(path: object, flags: int, *args: object, **more: object) -> int:
        nonlocal opened
        opened += 1
        if opened == when:
            shutil.rmtree(root / "inner")
            (root / "inner").symlink_to(outside)
        return real(path, flags, *args, **more)  # type: ignore[arg-type]

    for step in (1, 2):
        opened, when = 0, step
        (root / "inner" / "decoy").write_bytes(b"ours")
        with monkeypatch.context() as patch, pytest.raises(StorageError):
            patch.setattr(os, "open", swapped)
            remove(root / "inner" / "decoy", root)
        assert untouched(outside)
        (root / "inner").unlink()
        (root / "inner").mkdir()


def test_what_would_be_written_behind_a_link_is_refused(tree: tuple[Path, Path]) -> None:
    root, outside = tree
    for path in links(root, outside):
        with pytest.raises(StorageError):
            check_inside(path, root)
    check_inside(root / "not" / "there" / "yet", root)
    check_inside(root / "inner" / "new", root)


def test_sweeping_stays_in_its_folder(tree: tuple[Path, Path]) -> None:
    root, outside = tree
    hidden = [f".{name}.0123abcd.{kind}" for name in ("x", ".", "..", "mine")
              for kind in ("weft-new", "weft-old")]  # fmt: skip
    for name in hidden:
        (root / name).symlink_to(outside)
    sweep(root)
    assert untouched(outside) and (root / "mine").read_bytes() == b"mine"
    assert [p for p in root.iterdir() if p.name in hidden] == []


def test_an_inner_folder_that_is_a_link_is_not_swept(tree: tuple[Path, Path]) -> None:
    root, outside = tree
    (outside / ".x.0123abcd.weft-new").write_bytes(b"decoy")
    (root / "data").symlink_to(outside)
    with pytest.raises(StorageError, match="data is a link"), owned(root, "data"):
        pass
    assert (outside / ".x.0123abcd.weft-new").exists()


def test_what_is_written_replaces_a_link_itself(tree: tuple[Path, Path]) -> None:
    root, outside = tree
    (root / "file").symlink_to(outside / "decoy")
    (root / "folder").symlink_to(outside / "folder")
    write_bytes(root / "file", b"new")
    with replacing_folder(root / "folder") as new:
        write_bytes(new / "decoy", b"new")
    assert untouched(outside) and not (root / "file").is_symlink()
    assert (root / "folder" / "decoy").read_bytes() == b"new"


# Who may call what changes a path by name, and why it is no path from a disk.
ALLOWED = {
    "web/server.py": "copies bytes into an answer: a method of http.server",
    "core/places.py": "the one way",
    "serve/batches/folder.py": "links or copies a file into a new folder of its own",
    "serve/batches/journal.py": "cuts files that it has open, in a folder that it owns",
    "backends/emulated/process.py": "memory of our own, and a file in a temporary folder",
}
CALLS = {
    "unlink", "remove", "removedirs", "rmdir", "rmtree", "rename", "renames", "truncate",
    "ftruncate", "chmod", "lchmod", "fchmod", "chown", "lchown", "symlink", "symlink_to", "link",
    "hardlink_to", "move", "copyfile", "copytree", "copy2",
}  # fmt: skip
HOLDERS = {"os", "shutil", "path", "folder", "file", "target", "temporary"}


def changes(source: str) -> list[str]:
    """What in a module changes a path: calls of os, shutil and Path's methods of these names."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            continue
        name = node.func.attr
        if name != "replace" and name not in CALLS:
            continue
        of = ast.unparse(node.func.value)
        own = name in ("remove", "move", "copy2", "link", "truncate") and of not in HOLDERS
        replaced = name == "replace" and (of == "os" or (len(node.args) == 1 and not node.keywords))
        if replaced or (name in CALLS and not own):
            found.append(ast.unparse(node))
    return found


def test_nobody_else_changes_a_path() -> None:
    root = Path(weft.__file__).parent
    found = {}
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root).as_posix()
        if name not in ALLOWED and (made := changes(path.read_text(encoding="utf-8"))):
            found[name] = made
    assert found == {}


def test_the_search_finds_what_it_is_to_find() -> None:
    for line in ("os.unlink(x)", "path.unlink()", "shutil.rmtree(a)", "os.replace(a, b)",
                 "a.rename(b)", "a.replace(b)", "os.truncate(a, 0)", "x.chmod(1)"):  # fmt: skip
        assert changes(line) == [line]
    assert not changes("text.replace('a', 'b'); names.remove(x); replace(config, a=1)")
