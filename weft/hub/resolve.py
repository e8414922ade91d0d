"""Resolves a model's name to a path: a local one, one in the cache, or a newly fetched one."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from weft.core.errors import HubError, WeftError
from weft.core.notices import tell
from weft.core.places import check_inside, remove
from weft.core.text import first_line
from weft.host.files import default_directory, write_json
from weft.hub.box import NAMES, box_folder
from weft.hub.names import Name, is_gguf, parse
from weft.importers.hf_config import read_object
from weft.importers.safetensors import shard_names

if TYPE_CHECKING:
    from weft.hub.fetch import Agree, Check


def resolve(
    model: str | os.PathLike[str], agree: Agree | None = None, check: Check | None = None
) -> Path:
    """Returns the path of `model`.

    "box" and "box-chat" are the models that come with weft ("./box" is a local folder of that
    name). Otherwise a local path takes precedence. A string in the form of a name (ORG/NAME, with
    @REVISION and :FILE.gguf or :QUANTISATION) is looked up in huggingface_hub's cache, and fetched
    if it is missing. The hub is not asked about a model that is complete in the cache (`weft pull`
    asks it).

    `agree` receives the pending download and raises to decline; without it a line on stderr reports
    the download. `check` receives the model's folder with its config.json, before the weights are
    fetched, and raises to decline. Any other path is returned unchanged.

    Raises HubError, StorageError, ModelError.
    """
    path = Path(model)
    if isinstance(model, str) and model in NAMES:
        if os.path.exists(model):
            _say(f"{model} is the model that comes with weft; what lies here is ./{model}")
        return box_folder(model)
    if str(path) in NAMES:
        return path.absolute()  # "./box" as a string would be read as the name
    name = parse(model) if isinstance(model, str) and not os.path.exists(model) else None
    if name is None:
        return path
    found = cached(name)
    if found is not None:
        return found
    from weft.hub import fetch

    _say(f"there is no file or folder {model} here: looking for {name} on the hub")
    try:
        listing = fetch.look_up(name)
    except HubError as error:
        found = offline(name)
        if found is None:
            raise
        _say(f"{first_line(error)}; the cache has it")
        return found
    return fetch.fetch(listing, agree, check)


def _say(text: str) -> None:
    tell(f"weft: {text}")


def cached(name: Name) -> Path | None:
    """Returns the path of a model that was completely fetched or checked before; else None."""
    commit = name.commit()
    if commit is None:
        return None
    mark = _mark(name, commit)
    if mark is None or not os.path.isfile(mark):  # False, not an error, for another user's cache
        return None
    folder = name.snapshot(commit)
    try:
        files = read_object(mark).get("files")
    except WeftError:
        return None
    if not isinstance(files, list) or not files or not all(isinstance(f, str) for f in files):
        return None
    return entry(folder, files) if all((folder / f).is_file() for f in files) else None


def offline(name: Name) -> Path | None:
    """Returns the path of a model whose weights are complete in the cache, from any program."""
    from weft.hub.choice import choose

    commit = name.commit()
    folder = None if commit is None else name.snapshot(commit)
    if folder is None or not folder.is_dir():
        return None
    try:
        return entry(
            folder, choose(name.repo, name.part, held(folder), lambda n: shards(folder, n))
        )
    except WeftError:
        return None


def held(folder: Path) -> list[str]:
    """Returns the files of a snapshot, by their names in the repository."""
    return [
        (Path(at) / file).relative_to(folder).as_posix()
        for at, _, files in os.walk(folder)
        for file in files
        if (Path(at) / file).is_file()
    ]


def shards(folder: Path, index: str) -> list[str]:
    """Returns the files that an index names, each once. Raises FileFormatError."""
    return shard_names(folder / index)


def entry(folder: Path, files: Sequence[str]) -> Path:
    """Returns the path for `weft.load`: the (first) GGUF file, else the folder."""
    return folder / files[0] if is_gguf(files[0]) else folder


def note_whole(name: Name, commit: str, files: Sequence[str]) -> None:
    """Records that the cache has all of the model's files undamaged, as far as weft reads them."""
    mark = _mark(name, commit)
    if mark is not None:
        try:
            check_inside(mark, mark.parents[1])
            mark.parent.mkdir(parents=True, exist_ok=True)
            write_json(mark, {"model": str(name), "commit": commit, "files": list(files)})
        except OSError:
            pass  # the only effect: the next call asks the hub again


def forget(name: Name, commit: str) -> None:
    """Removes the record of `note_whole`."""
    mark = _mark(name, commit)
    if mark is not None:
        with suppress(OSError):
            remove(mark, mark.parents[1])


def _mark(name: Name, commit: str) -> Path | None:
    place = default_directory()
    key = hashlib.sha256(f"{name.repo}@{commit}:{name.part}".encode()).hexdigest()[:32]
    return None if place is None else place / "hub" / f"{key}.json"
