"""Removes models from huggingface_hub's cache.

Everything that goes is removed by `weft.core.places`, with the cache as the root: a link is removed
itself, and its target stays unless it is a blob of the same repository.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from weft.core.places import check_inside, remove, remove_empty, remove_tree
from weft.hub.names import COMMIT, Name, cache, read_ref
from weft.hub.resolve import forget
from weft.hub.store import blob_of


@dataclass(frozen=True)
class Removal:
    """The paths of one model: `files` and `trees` of the cache. `nbytes` is what they take."""

    name: Name
    commit: str
    files: tuple[Path, ...]
    trees: tuple[Path, ...]
    nbytes: int

    def check(self) -> None:
        """Raises StorageError if a link leads one of the paths out of the cache."""
        for path in (*self.files, *self.trees):
            check_inside(path, cache())

    def run(self) -> None:
        """Removes the paths, and weft's note that the model is whole. Raises StorageError,
        OSError."""
        self.check()
        forget(self.name, self.commit)
        for path in self.files:
            with suppress(FileNotFoundError):  # another process may remove it too
                remove(path, cache())
        for tree in self.trees:
            with suppress(FileNotFoundError):
                remove_tree(tree, cache())
        for path in self.files:
            for folder in _between(path, self.name.snapshot(self.commit)):
                with suppress(OSError):  # it still holds files of others
                    remove_empty(folder, cache())


def removal(name: Name, commit: str, files: Collection[str], last: bool) -> Removal:
    """Plans the removal of a model: its `files` in the snapshot of `commit`, and the blobs that no
    other file of the repository needs. With `last` it is the snapshot's only model, and the whole
    snapshot goes; so does the repository with its last snapshot."""
    snapshot = name.snapshot(commit)
    snapshots = [p for p in _listed(name.store / "snapshots") if p.is_dir() and not p.is_symlink()]
    if last and snapshots in ([snapshot], []):
        locks = cache() / ".locks" / name.store.name
        trees = [name.store, *([locks] if os.path.lexists(locks) else [])]
        return Removal(name, commit, (), tuple(trees), sum(map(_size, _walk(name.store))))
    gone = {*_walk(snapshot)} if last else {snapshot / file for file in files}
    stay = {p for other in snapshots for p in _walk(other)} - gone
    blobs = {*_blobs(name, gone)} - {*_blobs(name, stay)}
    taken = [*sorted(gone), *sorted(blobs)] if not last else sorted(blobs)
    refs = [p for p in _walk(name.store / "refs") if last and read_ref(p) == commit]
    freed = sum(map(_size, {*gone, *blobs}))
    return Removal(name, commit, (*taken, *refs), (snapshot,) if last else (), freed)


def _blobs(name: Name, files: Collection[Path]) -> Iterator[Path]:
    """Yields the blobs of the repository that links in a snapshot lead to."""
    for path in files:
        blob = blob_of(name, path) if path.is_symlink() else None
        if blob is not None and os.path.lexists(blob) and not blob.is_dir():
            yield blob


def _walk(folder: Path) -> Iterator[Path]:
    """Yields the files and links in a folder; links are not followed."""
    for at, folders, files in os.walk(folder):
        here = Path(at)
        yield from (here / file for file in files)
        yield from (here / inner for inner in folders if (here / inner).is_symlink())


def _listed(folder: Path) -> list[Path]:
    with suppress(OSError):
        return [p for p in folder.iterdir() if COMMIT.fullmatch(p.name)]
    return []


def _between(path: Path, snapshot: Path) -> list[Path]:
    """Returns the folders between a file and its snapshot, the innermost first, and both ends."""
    if not path.is_relative_to(snapshot):
        return []
    return [p for p in path.parents if p.is_relative_to(snapshot)]


def _size(path: Path) -> int:
    """Returns the bytes of a regular file; 0 for a link or what is not there."""
    with suppress(OSError):
        status = path.lstat()
        return status.st_size if stat.S_ISREG(status.st_mode) else 0
    return 0
