"""Text files for training: selects and orders them, and holds some out for evaluation.

Only the files' names and contents matter: two machines with the same folder train on the same text.
"""

from __future__ import annotations

import fnmatch
import hashlib
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path

from weft.core.errors import FileFormatError, UsageError, unreadable
from weft.host.progress import progress

STDLIB = "stdlib"  # a path that stands for the source of the running Python
STDLIB_EXCLUDE = (
    "*test/*", "*tests/*", "idlelib/*", "lib2to3/*", "site-packages/*", "dist-packages/*",
    "turtledemo/*", "ensurepip/*", "pydoc_data/*", "_sysconfigdata*", "config-*/*",
)  # fmt: skip
MAX_FILE = 64 << 20  # bytes; larger files must be split


@dataclass(frozen=True)
class Corpus:
    """Texts by name, sorted. `skipped` names the files that were not UTF-8 text."""

    train: tuple[tuple[str, str], ...]  # (name, text)
    held_out: tuple[tuple[str, str], ...]
    skipped: tuple[str, ...]
    digest: str  # digest of names and contents of both parts


def read_corpus(
    paths: Sequence[str], suffixes: Sequence[str], exclude: Sequence[str], holdout: float,
    base: Path, held_out: Sequence[str] = (),
) -> Corpus:  # fmt: skip
    """Reads the texts under `paths` (files, folders, glob patterns or "stdlib"; relative ones to
    `base`).

    A file in a folder counts if its name ends in one of `suffixes`; a file named directly always
    counts. A file whose path within its folder matches an `exclude` pattern does not.

    The share `holdout` of the files, chosen by a hash of their names, is kept for evaluation. If
    that would be far from the share of the text (with a single file, say), the last lines of each
    file are kept, or the end of a single line. With `held_out`, the files under these paths are
    kept instead.

    Raises UsageError for a path without files, FileFormatError if none of them is text.
    """
    texts, skipped = _read_all(paths, suffixes, exclude, base)
    if held_out:
        kept, more = _read_all(held_out, suffixes, exclude, base)
        train, held = sorted(texts.items()), sorted(kept.items())
        skipped += more
    else:
        train, held = _split(sorted(texts.items()), holdout)
    digest = hashlib.sha256()
    for part in (train, held):
        for name, text in part:
            digest.update(f"{len(name)} {len(text)} {name}".encode("utf-8", "surrogateescape"))
            digest.update(text.encode())
        digest.update(b"|")
    return Corpus(tuple(train), tuple(held), tuple(skipped), digest.hexdigest())


def _read_all(
    paths: Sequence[str], suffixes: Sequence[str], exclude: Sequence[str], base: Path
) -> tuple[dict[str, str], list[str]]:
    """Returns the texts by name, and the names of files that are not text."""
    files: list[tuple[str, Path]] = []
    for path in paths:
        found = list(find_files(path, suffixes, exclude, base))
        if not found:
            wanted = ", ".join(suffixes)
            raise UsageError(
                f"data path {path}: no file ending in {wanted} is there; "
                "check the path, [data] suffixes and exclude"
            )
        files += found
    with progress(f"reading {_count(files)}"):
        return _texts(files)


def skipped_line(names: Sequence[str]) -> str:
    """Returns a line about the files that were not text, with the first five names."""
    more = f" and {len(names) - 5:,} more" if len(names) > 5 else ""
    return f"{_count(names)} skipped, not UTF-8 text: {', '.join(names[:5])}{more}"


def _count(files: Sequence[object]) -> str:
    return f"{len(files):,} file{'s' if len(files) > 1 else ''}"


def _texts(files: Sequence[tuple[str, Path]]) -> tuple[dict[str, str], list[str]]:
    """Returns the texts by name, and the names of files that are not text. Raises FileFormatError
    if no file holds text."""
    texts: dict[str, str] = {}
    skipped = []
    known: dict[str, Path] = {}
    for name, file in files:
        if known.setdefault(name, file) != file:  # two folders with the same name
            name = file.as_posix()
        text = _read(file)
        if text is None:
            skipped.append(name)
        elif text.strip():
            texts[name] = text
    if not texts:
        shown = f" ({skipped[0]})" if skipped else ""
        raise FileFormatError(
            f"data: none of the {len(files)} files holds UTF-8 text{shown}; "
            "binary and empty files are not trained on"
        )
    return texts, skipped


def find_files(
    path: str, suffixes: Sequence[str], exclude: Sequence[str], base: Path
) -> Iterator[tuple[str, Path]]:
    """Yields (name, file) under one path, sorted by name."""
    if path == STDLIB:
        root = Path(sysconfig.get_path("stdlib"))
        yield from _folder(root, suffixes, (*exclude, *STDLIB_EXCLUDE), f"{STDLIB}/")
        return
    if any(c in path for c in "*?["):
        anchor = Path(path).anchor
        start, pattern = (Path(anchor), path[len(anchor) :]) if anchor else (base, path)
        try:
            matched = sorted(start.glob(pattern))
        except (ValueError, NotImplementedError) as error:
            raise UsageError(f"data path {path}: not a pattern: {error}") from None
        for file in matched:
            if file.is_file() and not _matches(file.as_posix(), exclude):
                yield file.as_posix(), file
        return
    try:
        target = base / Path(path).expanduser()
    except RuntimeError as error:  # ~ of an unknown user
        raise UsageError(f"data path {path}: {error}") from None
    if target.is_dir():
        yield from _folder(target, suffixes, exclude, f"{target.name}/")
    elif target.is_file():
        yield target.name, target
    else:
        raise UsageError(f"data path {path}: no such file or folder: {target.absolute()}")


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
    """Returns the file's text; None if it is not UTF-8 text."""
    try:
        with file.open("rb") as f:
            # Read in parts, to allocate no more than the file's size.
            parts = iter(partial(f.read, 1 << 20), b"")
            data = b"".join(islice(parts, (MAX_FILE >> 20) + 1))
    except OSError as error:
        raise unreadable(file, error) from None
    if len(data) > MAX_FILE:
        raise FileFormatError(f"{file}: split it into files of at most {MAX_FILE} bytes")
    if b"\0" in data:
        return None
    try:
        return data.decode("utf-8").replace("\r\n", "\n")
    except UnicodeDecodeError:
        return None


Texts = list[tuple[str, str]]


def _split(texts: Texts, share: float) -> tuple[Texts, Texts]:
    """Returns (training part, held-out part)."""
    if not share:
        return texts, []
    files, tails = _whole_files(texts, share), _tails(texts, share)
    total = _size(texts)
    if share / 4 <= _size(files[1]) / total <= share * 2:
        return files
    for found in (tails, files):
        if 0 < _size(found[1]) <= total / 2:
            return found
    return _ends(texts, share)


def _size(texts: Texts) -> int:
    return sum(len(text) for _, text in texts)


def _whole_files(texts: Texts, share: float) -> tuple[Texts, Texts]:
    """Holds out the share `share` of the files; with one file, nothing."""
    count = min(max(round(len(texts) * share), 1), len(texts) - 1)
    ranked = sorted(texts, key=_rank)
    held = {name for name, _ in ranked[:count]}
    return [t for t in texts if t[0] not in held], [t for t in texts if t[0] in held]


def _rank(item: tuple[str, str]) -> bytes:
    return hashlib.sha256(item[0].encode("utf-8", "surrogateescape")).digest()


def _tails(texts: Texts, share: float) -> tuple[Texts, Texts]:
    """Holds out the last lines of each file, at most the share `share` of its characters. With one
    file it holds out at least a line. Every file keeps its first line."""
    train: Texts = []
    held: Texts = []
    for name, text in texts:
        room = len(text) * share
        lines = _last_lines(text, int(room) + 2)
        if len(texts) == 1:
            room = max(room, len(lines[-1]))
        cut, kept = len(lines), len(text)
        while cut > 1 and len(lines[cut - 1]) <= room:
            cut -= 1
            room -= len(lines[cut])
            kept -= len(lines[cut])
        train.append((name, text[:kept]))
        if kept < len(text):
            held.append((name, text[kept:]))
    return train, held


def _last_lines(text: str, count: int) -> list[str]:
    """Returns the lines of the last `count` characters, or of more, so that there are two if the
    text has two. The first one may lack its beginning."""
    while True:
        lines = text[max(len(text) - count, 0) :].splitlines(keepends=True)
        if len(lines) > 1 or count >= len(text):
            return lines
        count *= 2


def _ends(texts: Texts, share: float) -> tuple[Texts, Texts]:
    """Holds out the share `share` of each file's characters, for texts without line breaks."""
    cuts = [(name, text, len(text) - int(len(text) * share)) for name, text in texts]
    train = [(name, text[:cut]) for name, text, cut in cuts]
    return train, [(name, text[cut:]) for name, text, cut in cuts if cut < len(text)]
