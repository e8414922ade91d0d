"""The API reference: every public name is described, and the pages are built without a warning."""

from __future__ import annotations

import importlib.util
import inspect
import pydoc
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import FunctionType, MethodType

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))
import api

from weft import nn, optim

ROOT = Path(__file__).resolve().parents[2]
MODULES = Path(sys.prefix) / "node" / "node_modules"


def test_every_public_name_has_a_docstring() -> None:
    assert api.undocumented() == []
    assert sum(1 for module in api.MODULES for _ in api.public(module)) > 1500


def test_what_has_no_docstring_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(optim.Adam, "__doc__", "")
    for owner in nn.Conv2d.__mro__:
        if "forward" in vars(owner):
            monkeypatch.setattr(vars(owner)["forward"], "__doc__", None)
    found = api.undocumented()
    assert "weft.optim.Adam" in found and "weft.nn.Conv2d.forward" in found


@pytest.mark.parametrize("module", api.MODULES)
def test_help_shows_a_text_for_every_member(module: str) -> None:
    """Inherited ones too: a guard around another class's method hides from pydoc whose it is."""
    silent = [
        f"{owner.__name__}.{name}"
        for owner in vars(import_module(module)).values()
        if inspect.isclass(owner) and owner.__module__.startswith("weft")
        for name in dir(owner)
        if not name.startswith("_")
        and isinstance(member := getattr(owner, name), FunctionType | MethodType | property)
        and not pydoc.getdoc(member)
    ]
    assert not silent


@pytest.mark.skipif(
    importlib.util.find_spec("pdoc") is None, reason="pdoc is not installed: pip install '.[docs]'"
)
def test_the_pages_are_built_without_a_warning(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "scripts" / "api.py"), str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for module in api.MODULES:
        page = (tmp_path / f"{module.replace('.', '/')}.html").read_text(encoding="utf-8")
        for name, _ in api.public(module):
            assert f'id="{name.removeprefix(f"{module}.")}"' in page, name


@pytest.mark.skipif(
    not (MODULES / "typescript").is_dir() or shutil.which("node") is None,
    reason="node or npm's typescript was not found: sh scripts/setup test",
)
def test_the_javascript_reference_is_what_is_generated() -> None:
    """A public name without a comment ends the script with status 1."""
    command = ["node", str(ROOT / "scripts" / "api_js.mjs"), str(MODULES)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    page = (ROOT / "docs" / "api-javascript.md").read_text(encoding="utf-8")
    assert page == done.stdout, "write it anew: docs/testing.md, The API reference"
