"""`weft new-backend`, and packages that add devices badly."""

import importlib
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from weft.backends.llvm.dialect import render
from weft.backends.llvm.target import LlvmTarget
from weft.cli.new_backend import package
from weft.core import dtypes as dt
from weft.core.caps import PRESETS
from weft.core.errors import UsageError
from weft.kernel.builder import Builder

ROOT = Path(__file__).resolve().parents[2]


def installed(folder: Path, files: dict[str, str]) -> Path:
    """Files of a package as pip would lay them out, with what pyproject.toml says of it."""
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)
    project = tomllib.loads(files["pyproject.toml"])["project"]
    assert project["dependencies"] == ["weft-ml"]
    about = folder / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    )
    points = project["entry-points"]["weft.backends"]
    lines = [f"{name} = {where}" for name, where in points.items()]
    (about / "entry_points.txt").write_text("\n".join(["[weft.backends]", *lines, ""]))
    return folder


def weft(site: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{site}"}
    command = [sys.executable, *arguments]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False)


def test_what_it_writes_passes_as_it_is(tmp_path):
    written = weft(tmp_path, "-m", "weft", "new-backend", "mychip", "-o", str(tmp_path / "new"))
    assert written.returncode == 0 and "pip install -e" in written.stdout
    files = {
        str(path.relative_to(tmp_path / "new")): path.read_text()
        for path in (tmp_path / "new").rglob("*")
        if path.is_file()
    }
    assert files == package("mychip")
    site = installed(tmp_path / "site", files)
    assert "mychip:0" in weft(site, "-m", "weft", "devices").stdout
    checked = weft(site, "-m", "weft", "check", "--device", "mychip", "--level", "device")
    assert checked.returncode == 0 and "passed 10" in checked.stdout
    tested = weft(site, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(site / "tests"))
    assert tested.returncode == 0 and "1 passed" in tested.stdout
    again = weft(tmp_path, "-m", "weft", "new-backend", "mychip", "-o", str(tmp_path / "new"))
    assert again.returncode == 2 and "is not empty" in again.stderr


@pytest.mark.parametrize(
    "name", ["cpu", "auto", "ml", "riscv64", "My", "a-b", "../x", "", "1a", "a_", "a" * 42]
)
def test_names_that_no_device_can_have(name):
    with pytest.raises(UsageError, match="name"):
        package(name)


@pytest.mark.parametrize("name", ["class", "weft", "json", "a" * 41])
def test_names_that_mean_something_to_python(name):
    """Modules are called weft_NAME, so none of these is in the way."""
    files = package(name)
    compile(files[f"weft_{name}.py"], name, "exec")
    project = tomllib.loads(files["pyproject.toml"])
    assert project["project"]["entry-points"]["weft.backends"].keys() == {name}


def test_what_the_readme_names_exists():
    """Its dotted names and the entry of the code that it describes."""
    text = package("mychip")["README.md"]
    for dotted in set(re.findall(r"weft(?:\.[a-zA-Z_]+)+", text)):
        try:
            importlib.import_module(dotted)
        except ModuleNotFoundError:
            module, _, attribute = dotted.rpartition(".")
            assert hasattr(importlib.import_module(module), attribute), dotted
    b = Builder("one")
    b.store(b.buffer("out", dt.float32, 1, "w"), 0, 1.0)
    code = render(b.kernel((1,)), PRESETS["cpu-neon"], LlvmTarget("mychip"))
    arguments = re.findall(
        r"%?(\w+)(?=[,)])", text[text.index("weft_kernel(") :].split(")")[0] + ")"
    )
    (entry,) = re.findall(r"define void @weft_kernel\((.*)\)", code)
    assert len(arguments) == entry.count("%") == 8


def test_a_package_that_does_not_import(tmp_path):
    files = package("mychip")
    files["weft_mychip.py"] = "raise RuntimeError('no firmware\\nsecond line')\n"
    site = installed(tmp_path, files)
    listed = weft(site, "-m", "weft", "devices")
    (line,) = [x for x in listed.stdout.splitlines() if x.startswith("mychip")]
    assert listed.returncode == 0 and "RuntimeError: no firmware" in line and "missing" in line
    checked = weft(site, "-m", "weft", "check", "--device", "mychip")
    assert checked.returncode == 1 and "no firmware" in checked.stderr
    assert len(checked.stderr.splitlines()) == 1


def test_a_device_with_wrong_data(tmp_path):
    """`weft check` says where the first difference is."""
    files = package("mychip")
    files["weft_mychip.py"] += """
    def read(self, buffer, shape, dtype, offset=0):
        found = super().read(buffer, shape, dtype, offset)
        if found.size > 2:
            found.reshape(-1)[2] += 1
        return found
"""
    site = installed(tmp_path, files)
    checked = weft(site, "-m", "weft", "check", "--device", "mychip", "--level", "device")
    assert checked.returncode == 1
    assert "FAIL device: write then read" in checked.stdout
    assert "1 of 3 differ; worst at [2]: got" in checked.stdout
