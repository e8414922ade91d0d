"""Names of models on a hub, and their places in huggingface_hub's cache."""

from __future__ import annotations

import os
import re
from pathlib import Path

from weft.core.records import dataclass

_WORD = r"[A-Za-z0-9](?:[\w.-]{0,94}\w)?"
_NAME = re.compile(
    rf"(?P<repo>{_WORD}/{_WORD})(?:@(?P<revision>\w[\w.+-]*(?:/\w[\w.+-]*)*))?(?::(?P<part>.+))?",
    re.ASCII,
)
COMMIT = re.compile(r"[0-9a-f]{40}")
MAIN = "main"


@dataclass(frozen=True)
class Name:
    """A model on a hub. `part`: a GGUF file of the repository, or a quantisation (Q4_K_M)."""

    repo: str
    revision: str = MAIN
    part: str = ""

    def __str__(self) -> str:
        at = "" if self.revision == MAIN else f"@{self.revision}"
        return f"{self.repo}{at}" + (f":{self.part}" if self.part else "")

    @property
    def store(self) -> Path:
        """The repository's folder in the cache: refs, blobs, snapshots."""
        return cache() / f"models--{self.repo.replace('/', '--')}"

    def snapshot(self, commit: str) -> Path:
        return self.store / "snapshots" / commit

    def commit(self) -> str | None:
        """Returns the commit that the cache has for the revision, or None."""
        if COMMIT.fullmatch(self.revision):
            return self.revision
        return read_ref(self.store / "refs" / self.revision)


def read_ref(path: Path) -> str | None:
    """Returns the commit in a file of the cache's refs, or None."""
    try:
        with path.open(encoding="ascii") as f:
            found = f.read(64).strip()
    except (OSError, ValueError):
        return None
    return found if COMMIT.fullmatch(found) else None


def parse(text: str) -> Name | None:
    """Returns the name that `text` spells; None if it is not a name."""
    found = _NAME.fullmatch(text)
    if found is None or "--" in found["repo"] or ".." in text or found["repo"].endswith(".git"):
        return None
    return Name(found["repo"], found["revision"] or MAIN, found["part"] or "")


def is_gguf(file: str) -> bool:
    return file.lower().endswith(".gguf")


def cache() -> Path:
    """Returns the folder of huggingface_hub's cache, from the same environment variables that it
    reads."""
    home = os.environ.get("XDG_CACHE_HOME", os.path.join("~", ".cache"))
    hub = os.path.join(os.environ.get("HF_HOME", os.path.join(home, "huggingface")), "hub")
    chosen = os.environ.get("HF_HUB_CACHE", os.environ.get("HUGGINGFACE_HUB_CACHE", hub))
    return Path(os.path.expandvars(os.path.expanduser(chosen))).absolute()


def name_of(path: Path) -> str:
    """Returns ORG/NAME, and the file, for a path in a cache; else the path's last part."""
    for at in (path, *path.parents):
        if at.parent.name == "snapshots" and at.parent.parent.name.startswith("models--"):
            repo = at.parent.parent.name.removeprefix("models--").replace("--", "/", 1)
            inner = path.relative_to(at).as_posix()
            return repo if inner == "." else f"{repo}:{inner}"
    return path.name


def named(path: str) -> str:
    """Returns ORG/NAME for a folder in a cache; other paths unchanged."""
    return name_of(Path(path)) if Path(path).parent.name == "snapshots" else path
