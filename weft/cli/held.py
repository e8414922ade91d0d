"""The models in huggingface_hub's cache that weft can load."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from weft.core.errors import WeftError
from weft.hub.choice import CONFIG, choose, gguf_models, whole
from weft.hub.names import COMMIT, MAIN, Name, cache, is_gguf, parse, read_ref
from weft.hub.removal import Removal, removal
from weft.hub.resolve import entry, held, shards


@dataclass(frozen=True)
class CachedModel:
    """A cached model: the name that loads it, its branch or tag (else the commit), the size of its
    files. `at` is its place on the hub, `files` are those of the snapshot that weft reads."""

    name: str
    revision: str
    commit: str
    nbytes: int
    kind: str
    path: str
    at: Name
    files: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        out = asdict(self)
        del out["at"], out["files"]
        return out | {"bytes": out.pop("nbytes")}

    def removal(self, last: bool) -> Removal:
        """Plans to remove it; `last` if it is the only model of its snapshot."""
        return removal(self.at, self.commit, self.files, last)


def held_models() -> list[CachedModel]:
    """Returns the complete cached models that weft can read, by name."""
    out: list[CachedModel] = []
    folder = cache()
    for store in sorted(folder.glob("models--*")) if folder.is_dir() else ():
        name = parse(store.name.removeprefix("models--").replace("--", "/", 1))
        if name is not None and name.store == store:
            out += _of_repository(name)
    return out


def _of_repository(name: Name) -> Iterator[CachedModel]:
    revisions = _revisions(name.store / "refs")
    for folder in sorted((name.store / "snapshots").glob("*")):
        if not COMMIT.fullmatch(folder.name) or not folder.is_dir():
            continue
        revision = revisions.get(folder.name, folder.name[:12])
        at = Name(name.repo, revisions.get(folder.name, folder.name))
        for part, files, kind in _models(name.repo, folder):
            nbytes = sum((folder / f).stat().st_size for f in files)
            full, path = Name(at.repo, at.revision, part), str(entry(folder, files))
            yield CachedModel(
                str(full), revision, folder.name, nbytes, kind, path, full, tuple(files)
            )  # fmt: skip


def _revisions(refs: Path) -> dict[str, str]:
    """Returns commit -> branch or tag in the cache; main has precedence."""
    found: dict[str, str] = {}
    for path in sorted(refs.rglob("*")) if refs.is_dir() else ():
        revision, commit = path.relative_to(refs).as_posix(), read_ref(path)
        if commit is not None and (commit not in found or revision == MAIN):
            found[commit] = revision
    return found


def _models(repo: str, folder: Path) -> Iterator[tuple[str, list[str], str]]:
    """Yields (part, files, kind) for each model in a snapshot."""
    from weft.importers.gguf import open_gguf
    from weft.models.run.loader import check_supported
    from weft.models.weights.gguf_config import read_config

    names = held(folder)
    with suppress(WeftError):
        rest = [n for n in names if not is_gguf(n)]
        files = choose(repo, "", rest, lambda index: shards(folder, index))
        yield "", files, check_supported(folder) if CONFIG in files else "adapter"
    for first, parts in gguf_models(names).items():
        with suppress(WeftError):
            file = open_gguf(folder / first)
            read_config(file)
            arch = file.metadata["general.architecture"]
            yield first, whole(repo, parts), f"{arch}, GGUF"
