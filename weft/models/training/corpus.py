"""Text files for training: which ones, in which order, and which are held out for evaluation.

Everything is a function of the files' names and contents: two machines with the same folder train
on the same text.
"""

from __future__ import annotations

import fnmatch
import hashlib
import platform
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from weft.core.errors import FileFormatError, UsageError

STDLIB = "stdlib"  # as a path: the source of the Python that runs
STDLIB_EXCLUDE = (
    "*test/*", "*tests/*", "idlelib/*", "lib2to3/*", "site-packages/*", "dist-packages/*",
    "turtledemo/*", "ensurepip/*", "pydoc_data/*", "_sysconfigdata*", "config-*/*",
)  # fmt: skip
MAX_FILE = 64 << 20  # bytes; a larger file is refused: split it


@dataclass(frozen=True)
class Corpus:
    """Texts by name, sorted. `skipped` names the files that were not UTF-8 text."""

    train: tuple[tuple[str, str], ...]  # (name, text)
    held_out: tuple[tuple[str, str], ...]
    skipped: tuple[str, ...]
    digest: str  # of names and contents of both parts

    @property
    def python(self) -> str:
        """The Python whose library "stdlib" means."""
        return platform.python_version()


def read_corpus(
    paths: Sequence[str], suffixes: Sequence[str], exclude: Sequence[str], holdout: float,
    base: Path,
) -> Corpus:  # fmt: skip
    """The texts under `paths` (files, folders, glob patterns or "stdlib"; relative ones to `base`)
    whose names end in one of `suffixes` (files named one by one always count) and match none of the
    `exclude` patterns (of the path within its folder). The share `holdout` of the files, chosen by
    a hash of their names, is kept for evaluation; of a single file its last lines are.

    Raises UsageError for a path without files, FileFormatError when none of them is text.
    """
    texts: dict[str, str] = {}
    skipped: list[str] = []
    seen = 0
    for path in paths:
        found = list(_files(path, suffixes, exclude, base))
        if not found:
            wanted = ", ".join(suffixes)
            raise UsageError(
                f"data path {path}: no file ending in {wanted} is there; "
                "check the path, [data] suffixes and exclude"
            )
        seen += len(found)
        for name, file in found:
            text = _read(file)
            if text is None:
                skipped.append(name)
            elif text.strip():
                texts[name] = text
    if not texts:
        shown = f" ({skipped[0]})" if skipped else ""
        raise FileFormatError(
            f"data: none of the {seen} files holds UTF-8 text{shown}; "
            "binary and empty files are not trained on"
        )
    train, held = _split(sorted(texts.items()), holdout)
    digest = hashlib.sha256()
    for part in (train, held):
        for name, text in part:
            digest.update(f"{len(name)} {len(text)} {name}".encode())
            digest.update(text.encode())
        digest.update(b"|")
    return Corpus(tuple(train), tuple(held), tuple(skipped), digest.hexdigest())


def _files(
    path: str, suffixes: Sequence[str], exclude: Sequence[str], base: Path
) -> Iterator[tuple[str, Path]]:
    """(name, file) under one path, sorted by name."""
    if path == STDLIB:
        root = Path(sysconfig.get_path("stdlib"))
        yield from _folder(root, suffixes, (*exclude, *STDLIB_EXCLUDE), f"{STDLIB}/")
        return
    if any(c in path for c in "*?["):
        anchor = Path(path).anchor
        start, pattern = (Path(anchor), path[len(anchor) :]) if anchor else (base, path)
        for file in sorted(start.glob(pattern)):
            if file.is_file() and not _matches(file.as_posix(), exclude):
                yield file.as_posix(), file
        return
    target = base / Path(path).expanduser()
    if target.is_dir():
        yield from _folder(target, suffixes, exclude, f"{target.name}/")
    elif target.is_file():
        yield target.name, target
    else:
        raise UsageError(f"data path {path}: no such file or folder (looked for {target})")


def _folder(
    root: Path, suffixes: Sequence[str], exclude: Sequence[str], prefix: str
) -> Iterator[tuple[str, Path]]:
    for file in sorted(root.rglob("*")):
        inner = file.relative_to(root).as_posix()
        if any(part.startswith(".") for part in inner.split("/")):
            continue
        if inner.endswith(tuple(suffixes)) and not _matches(inner, exclude) and file.is_file():
            yield prefix + inner, file


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, p) for p in patterns)


def _read(file: Path) -> str | None:
    """The file's text; None when it is not UTF-8 text."""
    if file.stat().st_size > MAX_FILE:
        raise FileFormatError(
            f"{file}: {file.stat().st_size} bytes; split it into files of at most {MAX_FILE}"
        )
    data = file.read_bytes()
    if b"\0" in data:
        return None
    try:
        return data.decode("utf-8").replace("\r\n", "\n")
    except UnicodeDecodeError:
        return None


Texts = list[tuple[str, str]]


def _split(texts: Texts, share: float) -> tuple[Texts, Texts]:
    """(training part, held-out part)."""
    if not share:
        return texts, []
    if len(texts) == 1:
        name, text = texts[0]
        lines = text.splitlines(keepends=True)
        cut = max(len(lines) - max(round(len(lines) * share), 1), 1)
        return [(name, "".join(lines[:cut]))], [(name, "".join(lines[cut:]))]
    count = min(max(round(len(texts) * share), 1), len(texts) - 1)
    ranked = sorted(texts, key=lambda item: hashlib.sha256(item[0].encode()).digest())
    held = {name for name, _ in ranked[:count]}
    return [t for t in texts if t[0] not in held], [t for t in texts if t[0] in held]
