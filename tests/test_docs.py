"""Docs that repeat the code must repeat it exactly, and links must lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from weft.core import text
from weft.core.tolerance import TABLE

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])


def test_numerics_shows_the_tolerance_table() -> None:
    rows = [
        [kind, dtype, f"{t.rtol:g}", f"{t.atol:g}", t.reason]
        for kind, row in TABLE.items()
        for dtype, t in row.items()
    ]
    table = text.markdown(["kind", "dtype", "rtol", "atol", "why"], rows)
    assert table in (ROOT / "docs" / "numerics.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page: Path) -> None:
    content = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", content):
        assert "://" in target or (page.parent / target).exists(), f"{page.name}: {target}"


def test_getting_started_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its blocks of Python, in their order."""
    monkeypatch.chdir(ROOT)
    page = (ROOT / "docs" / "getting-started.md").read_text(encoding="utf-8")
    names: dict[str, object] = {}
    for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        exec(compile(block, "getting-started.md", "exec"), names)
    assert "weft" in names and "model" in names
