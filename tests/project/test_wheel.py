"""What is built for others: a source distribution, and a wheel from it, which is installed where
nothing else of weft is."""

from __future__ import annotations

import os
import re
import shutil
import site
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email.message import Message
from email.parser import HeaderParser
from pathlib import Path

import pytest

import weft

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
BUILD = (
    "import sys, setuptools.build_meta as b; print(getattr(b, 'build_' + sys.argv[1])(sys.argv[2]))"
)
INSIDE = (
    "__init__.pyi", "py.typed", "box/model.safetensors", "box/tokenizer.json", "box/LICENSE",
    "box-chat/model.safetensors", "box-chat/chat_template.jinja", "box-chat/LICENSE",
    "cli/explain.html", "serve/page/index.html", "web/js/index.html", "web/js/weft.js",
    "web/js/package.json", "web/js/LICENSE", "web/js/NOTICE", "web/js/README.md",
    "web/js/types/weft.d.ts", "web/js/types/node.d.ts",
)  # fmt: skip
DEPENDENCIES = [
    p for p in (*site.getsitepackages(), site.getusersitepackages()) if Path(p).is_dir()
]


def run(*command: object, at: Path, **env: str) -> str:
    given = {n: v for n, v in os.environ.items() if n not in ("PYTHONPATH", "WEFT_VERIFY")} | env
    words = [str(c) for c in command]
    done = subprocess.run(words, cwd=at, env=given, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """(the source distribution, the wheel that is made of it)."""
    folder = tmp_path_factory.mktemp("built")
    source = folder / "source"
    rubbish = shutil.ignore_patterns("__pycache__", "node_modules", "*.egg-info")
    shutil.copytree(ROOT / "weft", source / "weft", ignore=rubbish)
    shutil.copytree(ROOT / "tests/project", source / "tests/project", ignore=rubbish)
    for path in ROOT.iterdir():
        if path.is_file() and path.name[0] != ".":
            shutil.copy(path, source)
    packed = folder / run(sys.executable, "-c", BUILD, "sdist", folder, at=source).split()[-1]
    with tarfile.open(packed) as archive:
        archive.extractall(folder / "unpacked", filter="data")
    (unpacked,) = (folder / "unpacked").iterdir()
    name = run(sys.executable, "-c", BUILD, "wheel", folder, at=unpacked).split()[-1]
    return packed, folder / name


def test_the_source_distribution(built: tuple[Path, Path]) -> None:
    packed, _ = built
    assert packed.name == f"weft_ml-{weft.__version__}.tar.gz"
    with tarfile.open(packed) as archive:
        names = {n.partition("/")[2] for n in archive.getnames()}
    assert {f"weft/{n}" for n in INSIDE} <= names
    assert {"LICENSE", "NOTICE", "README.md", "CHANGELOG.md", "pyproject.toml"} <= names
    assert not [n for n in names if n.startswith("tests")]


def test_the_wheel_holds_the_package_alone(built: tuple[Path, Path]) -> None:
    with zipfile.ZipFile(built[1]) as archive:
        names = {n for n in archive.namelist() if not n.endswith("/")}
        texts = {n: archive.read(n) for n in names}
    info = f"weft_ml-{weft.__version__}.dist-info"
    assert {n.split("/")[0] for n in names} == {"weft", info}
    assert {f"weft/{n}" for n in INSIDE} <= names
    for name in ("LICENSE", "NOTICE"):
        assert texts[f"{info}/licenses/{name}"] == (ROOT / name).read_bytes()
    wanted = {p.relative_to(ROOT).as_posix() for p in (ROOT / "weft").rglob("*.py")}
    assert wanted == {n for n in names if n.endswith(".py")}
    odd = re.compile(r"(^|/)(tests?|node_modules|__pycache__)/|\.pyc$|eslint|jsconfig")
    assert not [n for n in names if odd.search(n)]
    here = re.compile(rb"(?<![\w.])/(?:root|home|work|Users)/|" + re.escape(str(ROOT).encode()))
    assert not [n for n, text in texts.items() if here.search(text)], "a path of this machine"
    assert sum(map(len, texts.values())) < 32 << 20


def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        name = next(n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        return HeaderParser().parsestr(archive.read(name).decode())


def test_metadata(built: tuple[Path, Path]) -> None:
    found = metadata(built[1])
    assert (found["Name"], found["Version"]) == (PROJECT["name"], weft.__version__)
    assert found["License-Expression"] == "Apache-2.0" and found["Author"] == "the weft authors"
    assert found.get_all("License-File") == ["LICENSE", "NOTICE"]
    assert found["Description-Content-Type"] == "text/markdown"
    assert found.get_all("Classifier") == PROJECT["classifiers"]
    assert not any("License ::" in each for each in PROJECT["classifiers"])  # PEP 639
    assert {*found.get_all("Provides-Extra", [])} == {*PROJECT["optional-dependencies"]}
    assert not {"Home-page", "Project-URL", "Download-URL", "Author-email"} & {*found}
    plain = [r for r in found.get_all("Requires-Dist", []) if "extra ==" not in r]
    names = {re.split(r"[<>=~;\[ ]", r)[0] for r in plain}
    assert names == {re.split(r"[<>=~;\[ ]", r)[0] for r in PROJECT["dependencies"]}


def environment(folder: Path) -> Path:
    """An environment with weft's dependencies and nothing of weft; its Python."""
    run(sys.executable, "-m", "venv", "--without-pip", folder, at=folder.parent)
    (packages,) = (folder / "lib").glob("python3*/site-packages")
    (packages / "dependencies.pth").write_text(
        "\n".join(d for d in DEPENDENCIES if Path(d).is_dir())
    )
    return folder / "bin/python"


def tried(python: Path, at: Path) -> None:
    """weft runs from there, from an empty folder."""
    weft_ = python.with_name("weft")
    assert weft.__version__ in run(weft_, "--version", at=at)
    where = run(python, "-c", "import weft; print(weft.__file__)", at=at).strip()
    assert Path(where).is_relative_to(python.parents[1]), where
    said = run(weft_, "run", "def f", "--max-new-tokens", "4", "--device", "cpu", "--json", at=at)
    assert '"finish_reason": "length"' in said
    ask = "from weft.core import install as i; print(i.name(), i.clash()); print(i.how('serve'))"
    told = run(python, "-c", ask, at=at).splitlines()
    assert told[0] == "weft-ml None" and told[1].endswith("[serve]'")


def test_it_runs_from_the_wheel(built: tuple[Path, Path], tmp_path: Path) -> None:
    python = environment(tmp_path / "env")
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet"]
    pip += ["--no-deps", "--no-index", "--disable-pip-version-check"]
    run(*pip, built[1], at=tmp_path)
    (tmp_path / "empty").mkdir()
    tried(python, tmp_path / "empty")


@pytest.mark.slow
@pytest.mark.parametrize("extra", ["", "[serve,import,train]"])
def test_it_installs_with_all_that_it_needs(
    built: tuple[Path, Path], tmp_path: Path, extra: str
) -> None:
    """From a package index, into an environment that is empty."""
    run(sys.executable, "-m", "venv", tmp_path / "env", at=tmp_path)
    python = tmp_path / "env/bin/python"
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    run(*pip, f"{built[1]}{extra}", at=tmp_path)
    run(python, "-m", "pip", "check", at=tmp_path)
    (tmp_path / "empty").mkdir()
    tried(python, tmp_path / "empty")


@pytest.mark.slow
def test_the_lowest_versions_that_are_allowed(tmp_path: Path) -> None:
    """weft itself, and the server's extra; scripts/lower_bounds.py --all tries every extra."""
    run(sys.executable, ROOT / "scripts/lower_bounds.py", "--all", "--only-resolve", at=tmp_path)
