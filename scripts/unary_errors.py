"""Measures every function of one argument and of two, and writes the tables of docs/numerics.md
again: python scripts/unary_errors.py (three minutes on two cores; needs a Vulkan device)."""

from __future__ import annotations

import re
from pathlib import Path

from weft.conform import binary, unary

PAGE = Path(__file__).resolve().parent.parent / "docs" / "numerics.md"


def written(page: str, mark: str, table: str) -> str:
    """The page with the table under a mark replaced."""
    return re.sub(rf"(<!-- {mark} -->\n)(\|.*\n?)*", lambda m: f"{m[1]}{table}\n", page)


if __name__ == "__main__":
    page = PAGE.read_text(encoding="utf-8")
    page = written(page, "unary", unary.table())
    PAGE.write_text(written(page, "binary", binary.table()))
