"""The array API standard's own tests, where the user has them: docs/array-api.md names each that
fails and needs no complex numbers."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_the_page_names_what_fails(tmp_path: Path) -> None:
    folder = os.environ.get("ARRAY_API_TESTS", "")
    if not folder:
        pytest.skip("set ARRAY_API_TESTS to a clone of data-apis/array-api-tests")
    spec = importlib.util.spec_from_file_location("suite", ROOT / "scripts/array_api_suite.py")
    assert spec is not None and spec.loader is not None
    suite = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(suite)
    found = suite.outcomes(suite.copied(Path(folder), tmp_path), 10)
    failed = {name for name, outcome in found.items() if outcome in ("failed", "error")}
    page = (ROOT / "docs/array-api.md").read_text(encoding="utf-8")
    others = {name for name in failed if not suite.COMPLEX.search(name)}
    assert len(found) > 1300 and not {n for n in others if n.partition("(")[0] not in page}
