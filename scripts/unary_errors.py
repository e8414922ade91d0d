"""Measures every function of one argument and writes the table of docs/numerics.md again:
python scripts/unary_errors.py (two minutes on two cores; needs a Vulkan device)."""

from __future__ import annotations

import re
from pathlib import Path

from weft.conform import unary

PAGE = Path(__file__).resolve().parent.parent / "docs" / "numerics.md"
MARK = "<!-- unary -->\n"

if __name__ == "__main__":
    page = PAGE.read_text(encoding="utf-8")
    table = unary.table()
    PAGE.write_text(re.sub(f"{MARK}.*", lambda _: f"{MARK}{table}\n", page, flags=re.DOTALL))
