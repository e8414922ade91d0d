"""What makes the project free to use: its licence, and one version and one name everywhere."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest

import weft

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PACKAGE = json.loads((ROOT / "weft/web/js/package.json").read_text())


def test_the_licence_is_the_same_everywhere() -> None:
    text = (ROOT / "LICENSE").read_text()
    assert "Apache License" in text and "END OF TERMS AND CONDITIONS" in text
    assert PROJECT["license"] == PACKAGE["license"] == "Apache-2.0"
    assert PROJECT["license-files"] == ["LICENSE", "NOTICE"]
    assert "license: Apache-2.0" in (ROOT / "CITATION.cff").read_text()
    for name in PROJECT["license-files"]:
        assert (ROOT / name).read_bytes() == (ROOT / "weft/web/js" / name).read_bytes()


def test_every_model_in_the_package_names_its_terms() -> None:
    models = [p.parent for p in (ROOT / "weft").rglob("config.json")]
    assert ROOT / "weft/box" in models
    for folder in models:
        terms = (folder / "LICENSE").read_text()
        assert "Apache License, Version 2.0" in terms and "Python Software Foundation" in terms
        assert f"weft/{folder.name}" in (ROOT / "NOTICE").read_text()


def test_one_version() -> None:
    """weft/__init__.py says it; what cannot read it there agrees."""
    assert "version" in PROJECT["dynamic"]
    assert PACKAGE["version"] == weft.__version__
    assert f"\nversion: {weft.__version__}\n" in (ROOT / "CITATION.cff").read_text()
    assert json.loads((ROOT / "docs/openapi.json").read_text())["info"]["version"] == (
        weft.__version__
    )
    latest = re.search(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert latest and latest[1].removeprefix("Unreleased ").split()[0] == weft.__version__


def test_one_name() -> None:
    assert PROJECT["name"] == PACKAGE["name"]
    for each in (PROJECT, PACKAGE):
        assert not {"urls", "homepage", "repository", "bugs"} & {*each}, "no address exists yet"


@pytest.mark.parametrize("page", ["CHANGELOG.md", "CITATION.cff", "CONTRIBUTING.md", "SECURITY.md"])
def test_the_page_is_there(page: str) -> None:
    assert (ROOT / page).stat().st_size > 200
