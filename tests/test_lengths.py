"""A file of weft/ is read in one go: at most 350 lines, unless it is a table or named here."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent / "weft"
MOST = 350

LONGER = {
    "kernel/ir.py",  # a table: the nodes of the Kernel IR, one class each, without code
}


def test_no_file_is_longer() -> None:
    lines = {
        path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8").count("\n")
        for path in ROOT.rglob("*.py")
    }
    assert {name for name, count in lines.items() if count > MOST} == LONGER
