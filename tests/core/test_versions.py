"""The source that a thing on disk is said to be made by, against what that source imports."""

from __future__ import annotations

import ast
import functools
import os
from pathlib import Path

import pytest

from weft.core import versions

ROOT = Path(versions.__file__).parents[2]

# What the makers import and are not made by: contracts, what keeps and plays the result, and the
# readers of files whose content the key holds already.
ASIDE: dict[str, tuple[str, ...]] = {
    "programs": (
        "weft/backends",
        "weft/engine",
        "weft/host",
        "weft/hub",
        "weft/importers",
        "weft/nn",
        "weft/optim",
        "weft/quantize",
        "weft/ranks",
        "weft/tensor",
    ),
    "cpu code": ("weft/program", "weft/host"),
    "emulated code": ("weft/program", "weft/host"),
    "gpu code": ("weft/program", "weft/host"),
    "packed order": (
        "weft/graph",
        "weft/host",
        "weft/importers",
        "weft/kernel",
        "weft/models",
        "weft/tensor",
    ),
    "tokenizers": ("weft/host", "weft/importers", "weft/models"),
    "traces": ("weft",),
    "tuning": ("weft",),
    "training": (),
}


@functools.cache
def imported(path: Path) -> set[Path]:
    """The modules of weft that a module imports, at any depth of nesting."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [a.name for a in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names = [node.module, *(f"{node.module}.{a.name}" for a in node.names)]
        for name in names:
            place = ROOT / Path(*name.split("."))
            found |= {p for p in (place.with_suffix(".py"), place / "__init__.py") if p.exists()}
    return {p for p in found if p.parent != ROOT / "weft"}


@pytest.mark.parametrize("kind", versions.MADE_BY)
def test_no_maker_is_forgotten(kind: str) -> None:
    listed = {ROOT / "weft" / name for name in versions.files(kind)}
    aside = [ROOT / name for name in ASIDE[kind]]
    forgotten = {
        str(p.relative_to(ROOT))
        for path in listed
        for p in imported(path) - listed
        if not any(p == a or a in p.parents for a in aside)
    }
    assert listed and not forgotten


def test_what_is_listed_exists() -> None:
    for kind, names in versions.MADE_BY.items():
        assert all((ROOT / "weft" / name).exists() for name in names), kind
        assert len(versions.stamp(kind)) == 64 and len(versions.digest(kind)) == 16


def test_changed_content_is_another_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where size and time stay: installers clamp times."""
    (tmp_path / "made").mkdir()
    source = tmp_path / "made" / "by.py"
    monkeypatch.setattr(versions, "_ROOT", tmp_path)
    monkeypatch.setitem(versions.MADE_BY, "test", ("made",))
    found = set()
    for text in ("a = 1\n", "a = 2\n", "a = 12\n"):
        source.write_text(text)
        os.utime(source, (0, 0))
        for known in (versions.stamp, versions._content):
            known.cache_clear()
        found.add((versions.stamp("test"), versions.digest("test")))
    versions.stamp.cache_clear()
    assert len({stamp for stamp, _ in found}) == len({digest for _, digest in found}) == 3
