"""weft is installed from its clone: pages and messages say so, and never name the packages called
`weft` in the registries, which are other projects."""

from __future__ import annotations

import base64
import hashlib
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from weft.core import install

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
OLD = ("examples/prose.txt", "docs/results")  # texts that never change
BINARY = (".png", ".gz", ".safetensors", ".wasm")
# A name that a registry would look up: `weft`, `weft-ml`, `weft[serve]`, `weft-npu[picture]`.
LOOKED_UP = re.compile(
    r"\bweft(?:-\w+)?\[[a-z]"
    r"|\b(?:pip[x3]?|uv|npm|pnpm|yarn|bun|poetry)(?: pip)? (?:install|add|i)(?:\s+-{1,2}[\w=]+)*"
    r"\s+['\"]?weft(?:-ml)?(?:[@=>'\"`,;)&|\s]|$)"
    r"|\bfrom\s+['\"]weft['\"]|\bimport\(['\"]weft['\"]\)|\brequire\(['\"]weft['\"]\)"
    r"|(?:dependencies|requires)\s*=\s*\[[^\]]*['\"]weft['\"<>=]"
)
EXTRA = re.compile(r"pip install[^\n`;&|]*?['\"]?(?:\.|/)[\w./]*\[([a-z,]+)\]")


def pages() -> list[Path]:
    """Each text of the project but the tests: docs, messages, scripts, JavaScript, deploy/."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    names = listed.stdout.split("\n") if listed.returncode == 0 else []
    found = [ROOT / n for n in names] or [*ROOT.glob("*.*"), *(ROOT / "docs").rglob("*")]
    return [
        p for p in found
        if p.is_file() and p.suffix not in BINARY
        and not str(p.relative_to(ROOT)).startswith((*OLD, "tests/project"))
    ]  # fmt: skip


def test_nothing_says_to_install_what_a_registry_calls_weft() -> None:
    wrong = [
        f"{page.relative_to(ROOT)}:{n}: {line.strip()[:90]}"
        for page in pages()
        for n, line in enumerate(page.read_text(encoding="utf-8", errors="replace").split("\n"), 1)
        if LOOKED_UP.search(line)
    ]
    assert not wrong, "say how to install from the clone: " + "; ".join(wrong)


@pytest.mark.parametrize(
    "line",
    [
        "pip install weft", "pip install 'weft[serve]'", "`pip install weft`", "npm install weft",
        "npm i weft", "pip install -U weft && x", "install ROCm and 'weft[hip]'", "uv add weft",
        "pipx install weft", "pip install weft==0.2", "npm install weft@1", "yarn add weft",
        'import { load } from "weft";', 'dependencies = ["weft"]', "needs `weft[mpi]`",
        "pip install --upgrade weft-ml", "pip install 'weft-npu[picture]'",
    ],
)  # fmt: skip
def test_what_is_found(line: str) -> None:
    assert LOOKED_UP.search(line)


@pytest.mark.parametrize(
    "line",
    [
        "pip install '.[serve]'", "npm install ./weft/web/js", "pip install -e weft-mychip",
        "install weft's clone", "pip install '/work/weft[serve]'.replace", "from weft import nn",
        'import { load } from "./weft.js"', 'import { load } from "weft-ml"', "weft[0]",
    ],
)  # fmt: skip
def test_what_is_not_found(line: str) -> None:
    assert not LOOKED_UP.search(line.replace("/work/weft[", "/work/w["))


def test_extras_that_pages_name_exist() -> None:
    named = {
        extra
        for page in pages()
        for group in EXTRA.findall(page.read_text(encoding="utf-8", errors="replace"))
        for extra in group.split(",")
    }
    assert {"serve", "import", "mpi", "cuda", "hip"} <= named <= {*EXTRAS, "picture"}


def test_the_command_works_where_one_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(ROOT)
    assert install.name() == PROJECT["name"]
    assert install.how() == "pip install ."
    assert install.how("serve") == "pip install '.[serve]'"
    monkeypatch.chdir(tmp_path)
    assert install.how("serve") == f"pip install '{ROOT}[serve]'"


# -- other distributions, as pip leaves them ------------------------------------------------------

PRINT = """
from weft.core import install
print(install.name()); print(install.how("serve")); print(install.clash())
"""


def _installed(site: Path, name: str, script: str, files: dict[str, str]) -> Path:
    """A distribution in the folder `site`: its files and what pip writes of them."""
    rows = []
    for path, text in files.items():
        (site / path).parent.mkdir(parents=True, exist_ok=True)
        (site / path).write_text(text)
        made = hashlib.sha256(text.encode()).digest()
        digest = base64.urlsafe_b64encode(made).rstrip(b"=").decode()
        rows.append(f"{path},sha256={digest},{len(text)}")
    info = site / f"{name.replace('-', '_')}-9.9.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 9.9\n")
    (info / "entry_points.txt").write_text(f"[console_scripts]\nweft = {script}\n")
    (info / "RECORD").write_text("\n".join([*rows, f"{info.name}/RECORD,,", ""]))
    return info


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """An environment with enough of weft's wheel to say how it was installed."""
    site = tmp_path / "site"
    names = ["__init__.py", "__init__.pyi", "core/__init__.py", "core/install.py", "errors.py"]
    source = ROOT / "weft"
    given = {f"weft/{n}": (source / n).read_text() for n in names if (source / n).exists()}
    _installed(site, "weft-ml", "weft.cli.start:main", given)
    return site


def _said(site: Path) -> list[str]:
    env = {**os.environ, "PYTHONPATH": str(site)}
    command = [sys.executable, "-S", "-c", PRINT]
    done = subprocess.run(
        command, env=env, cwd=site.parent, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_an_installed_wheel(site: Path) -> None:
    assert _said(site) == ["weft-ml", "in weft's clone: pip install '.[serve]'", "None"]


def test_a_wheel_whose_clone_is_known(site: Path, tmp_path: Path) -> None:
    (tmp_path / "a clone").mkdir()
    (tmp_path / "a clone/pyproject.toml").touch()
    address = (tmp_path / "a clone").as_uri()
    (site / "weft_ml-9.9.dist-info/direct_url.json").write_text(f'{{"url": "{address}"}}')
    assert _said(site)[1] == f"pip install '{tmp_path}/a clone[serve]'"


@pytest.mark.parametrize(
    "said", ["{", "[]", '{"url": 3}', '{"url": "https://x/y"}', '{"url": "file:///no"}']
)
def test_a_wheel_from_elsewhere(site: Path, said: str) -> None:
    (site / "weft_ml-9.9.dist-info/direct_url.json").write_text(said)
    assert _said(site)[1] == "in weft's clone: pip install '.[serve]'"


def test_another_project_called_weft(site: Path) -> None:
    _installed(site, "weft", "weft.main:run", {"weft/main.py": "def run(): ..."})
    said = "\n".join(_said(site)[2:])
    assert "weft 9.9 of another project" in said and len(said.splitlines()) == 2
    assert "pip uninstall -y weft; in weft's clone: pip install --force-reinstall" in said


def test_another_project_that_took_our_place(site: Path) -> None:
    """pip writes over files that another distribution brought, and removes them with its own."""
    (site / "weft/__init__.py").write_text("__version__ = '3.1'")
    (site / "weft/errors.py").unlink()
    said = _said(site)[2]
    assert "2 of weft's files were changed or removed, weft/" in said


def test_an_older_distribution_of_ours_is_not_a_stranger(site: Path) -> None:
    _installed(site, "weft", "weft.cli.start:main", {})
    assert _said(site)[2] == "None"


def test_no_text_has_both_sides_of_a_merge() -> None:
    for path in pages():
        lines = path.read_text("utf-8").splitlines()
        assert not [line for line in lines if line.startswith(("<" * 7 + " ", ">" * 7 + " "))], path
