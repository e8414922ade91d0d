"""docs/environment.md lists every variable that weft reads, and names the file that reads it."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/environment.md").read_text(encoding="utf-8")
VARIABLE = re.compile(r"\bWEFT_[A-Z][A-Z0-9_]*[A-Z0-9]\b")
READ = re.compile(r"environ(?:\.get\(|\.pop\(|\.setdefault\(|\[)\s*\"([A-Z][A-Z0-9_]*)\"")


def sources() -> dict[Path, str]:
    """The texts of the package, Python's and JavaScript's."""
    return {
        path: path.read_text(encoding="utf-8")
        for path in (ROOT / "weft").rglob("*")
        if path.suffix in (".py", ".pyi", ".js", ".html", ".toml")
    }


def test_every_variable_of_weft_has_a_row() -> None:
    named = {name for text in sources().values() for name in VARIABLE.findall(text)}
    rows = re.findall(r"^\| `(WEFT_\w+)` \|", PAGE, re.M)
    assert rows == sorted(rows), "the rows are in alphabetical order"
    assert named - {*rows} == set(), "docs/environment.md has no row for them"
    assert {*rows} - named == set(), "nothing in weft/ reads them any more"


def test_each_row_names_a_file_that_reads_it() -> None:
    for row in re.findall(r"^\| `WEFT_.*$", PAGE, re.M):
        name = VARIABLE.findall(row)[0]
        files = re.findall(r"\]\(\.\./(weft/[\w/.]+)\)", row)
        assert files, f"{name}: its row names no file"
        for file in files:
            assert name in (ROOT / file).read_text(encoding="utf-8"), f"{file} does not read {name}"


def test_variables_of_others_are_listed() -> None:
    """Those that weft reads itself, but for what the system sets for every process."""
    system = {"LOCALAPPDATA", "USERNAME", "XDG_RUNTIME_DIR", "OMP_NUM_THREADS"}
    read = {name for text in sources().values() for name in READ.findall(text)}
    assert {"WEFT_DEVICE", "HF_HUB_OFFLINE"} <= read
    missing = {name for name in read - system if f"`{name}`" not in PAGE}
    assert not missing, "docs/environment.md does not name them"
