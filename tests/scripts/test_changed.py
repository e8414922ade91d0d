"""scripts/changed.py: which test files a change can touch, in a small project made for it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))
import changed

FILES = {
    "weft/__init__.py": "def __getattr__(name): ...\n",
    "weft/__init__.pyi": "from weft.tensor import add as add\nfrom weft import nn as nn\n",
    "weft/__main__.py": "from weft.cli.main import main\nmain()\n",
    "weft/tensor.py": "def add(a):\n    return _sum(a)\n\ndef _sum(a): ...\n\ndef other(): ...\n",
    "weft/nn.py": "class Linear:\n    def call(self):\n        from weft import tensor\n"
    "        return tensor.other()\n",
    "weft/rules.py": "RULES = {}\n\ndef rule(f): ...\n",
    "weft/more.py": "from weft.rules import rule\n\n@rule\ndef one(): ...\n",
    "weft/late/__init__.py": "_HOMES = {'read': 'reader'}\n\ndef __getattr__(name): ...\n",
    "weft/late/reader.py": "def read(): ...\n",
    "weft/cli/main.py": "COMMANDS = {'go': ('gone', 1)}\n\ndef main(name):\n"
    "    return __import__(f'weft.cli.{name}')\n",
    "weft/cli/__init__.py": "",
    "weft/cli/gone.py": "def run(): ...\n",
    "weft/cli/stay.py": "def run(): ...\n",
    "weft/web/js/player.js": "",
    "tests/conftest.py": "",
    "tests/rows.py": "def few(): ...\n",
    "tests/a/conftest.py": "import pytest, weft\n\n@pytest.fixture\ndef sum(): return weft.add\n",
    "tests/a/kit.py": "from weft.late import read\n\ndef play(): return read()\n",
    "tests/a/test_fixture.py": "def test(sum): ...\n",
    "tests/a/test_kit.py": "from kit import play\n\ndef test(): play()\n",
    "tests/a/test_nn.py": "from weft import nn\n\ndef test(): nn.Linear()\n",
    "tests/a/test_more.py": "import weft.more\n\ndef test(): ...\n",
    "tests/a/test_text.py": "def test(): 'weft.tensor.other'\n",
    "tests/a/test_none.py": "from rows import few\n\ndef test(): open('golden.json')\n",
    "tests/a/test_read.py": "def test(root): root.rglob('*.py')\n",
    "tests/cli/test_go.py": "from weft.cli.main import main\n\ndef test(): main('go')\n",
    "tests/cli/test_stay.py": "import os\n\ndef test(): os.system('python -m weft stay')\n",
    "tests/web/test_page.py": "def test(): ...\n",
    "docs/golden.json": "{}",
}
CASES = {  # what is changed, and how -> the tests, besides those that read all of the source
    "a function": ("weft/tensor.py", ("_sum(a): ...", "_sum(a): a"), "a/test_fixture"),
    "used in a method": ("weft/tensor.py", ("other(): ...", "other(): 1"), "a/test_nn a/test_text"),
    "what is registered": ("weft/more.py", ("one(): ...", "one(): 1"), "a/test_more"),
    "loaded late": ("weft/late/reader.py", ("read(): ...", "read(): 1"), "a/test_kit"),
    "a command by another name": ("weft/cli/gone.py", ("...", "1"), "cli/test_go"),
    "a command by its name": ("weft/cli/stay.py", ("...", "1"), "cli/test_stay"),
    "a helper of the tests": ("tests/a/kit.py", ("play()", "play(a=1)"), "a/test_kit"),
    "rows": ("tests/rows.py", ("...", "1"), "a/test_none"),
    "a test": ("tests/a/test_nn.py", ("test()", "test(a=1)"), "a/test_nn"),
    "the player": ("weft/web/js/player.js", ("", "1"), "web/test_page"),
    "data": ("docs/golden.json", ("{}", "[]"), "a/test_none"),
    "a comment": ("weft/tensor.py", ("def add", "# more\ndef add"), ""),
}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "one"]):
        who = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
        subprocess.run(["git", *who, *words], cwd=tmp_path, check=True)
    return tmp_path


def selected(root: Path, kept: Path | None = None) -> set[str]:
    found = changed.touched(changed.difference("HEAD", root), root, kept)
    return {name.removeprefix("tests/").removesuffix(".py") for name in found}


@pytest.mark.parametrize("case", CASES)
def test_what_a_change_can_touch(project: Path, case: str) -> None:
    name, (old, new), tests = CASES[case]
    text = (project / name).read_text()
    (project / name).write_text(text.replace(old, new) if old else new)
    expected = set(tests.split())
    if name.endswith(".py"):
        expected.add("a/test_read")
    found = selected(project, project / "facts.json")
    assert found == expected
    assert selected(project, project / "facts.json") == found  # from what was kept


def test_new_and_deleted_files(project: Path) -> None:
    (project / "tests/a/test_new.py").write_text("def test(): ...\n")
    (project / "weft/late/reader.py").unlink()
    assert selected(project) == {"a/test_new", "a/test_kit", "a/test_read"}


def test_settings_touch_everything(project: Path) -> None:
    assert selected(project) == set()
    (project / "pyproject.toml").write_text("")
    assert selected(project) == {"tests"}
