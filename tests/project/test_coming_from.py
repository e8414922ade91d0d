"""docs/coming-from.md: its Python runs, and its commands are understood."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import numpy as np
import pytest

from weft import nn
from weft.cli.main import cli

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/coming-from.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", PAGE, re.M | re.DOTALL))
CODE = re.compile(r"`([^`]+)`")


def right(section: str) -> list[str]:
    """The code in the right-hand column, row by row."""
    rows = re.findall(r"^\| (?!---)(.*) \|$", SECTIONS[section], re.M)
    return [code for row in rows for code in CODE.findall(row.split(" | ")[1])]


def is_python(code: str) -> bool:
    return bool(re.match(r"[a-zA-Z_.]+(\(|\[| = )|from |[a-z]\.\w+$", code))


def test_lines_for_users_of_pytorch_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Those of the table in their order, then the block that shows what differs."""
    monkeypatch.chdir(tmp_path)
    first, differs = re.findall(r"```python\n(.*?)```", SECTIONS["PyTorch"], re.DOTALL)
    names: dict[str, object] = {}
    exec(first, names)
    done = [code for code in right("PyTorch") if is_python(code)]
    for code in done:
        exec(code, names)
    exec(first + differs, names)
    assert len(done) >= 24


def test_lines_for_users_of_onnx_runtime_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    onnx = pytest.importorskip("onnx")
    kind, shape = onnx.TensorProto.FLOAT, ["n", 3]
    weight = onnx.numpy_helper.from_array(np.eye(3, dtype=np.float32), "w")
    info = onnx.helper.make_tensor_value_info
    node = onnx.helper.make_node("MatMul", ["x", "w"], ["y"])
    graph = onnx.helper.make_graph(
        [node], "g", [info("x", kind, shape)], [info("y", kind, shape)], [weight]
    )
    opset = [onnx.helper.make_opsetid("", 17)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=opset), tmp_path / "m.onnx")
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"x": np.ones((2, 3), np.float32)}
    done = [code for code in right("ONNX Runtime") if is_python(code)]
    for code in done:
        exec(code, names)
    y = names["y"]
    assert isinstance(y, np.ndarray) and (y == 1).all() and len(done) >= 6


COMMANDS = sorted(
    code for s in SECTIONS for code in right(s) if re.match(r"(WEFT_\w+=\d+ )?weft ", code)
)


@pytest.mark.parametrize("line", COMMANDS)
def test_commands_are_understood(
    line: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Their options exist and take what is given. What they name as files is made."""
    monkeypatch.chdir(tmp_path)
    words = shlex.split(line)
    for word in words:
        if re.fullmatch(r"[\w]+\.(gguf|txt|onnx|npy)", word.rpartition("=")[2]):
            (tmp_path / word.rpartition("=")[2]).touch()
    for folder in ("FOLDER", "A"):
        (tmp_path / folder).mkdir()
    command: click.Command = cli
    given, context = words[words.index("weft") + 1 :], None
    while isinstance(command, click.Group):
        context = click.Context(command, context)
        name = given.pop(0)
        command = command.get_command(context, name) or pytest.fail(f"no command {name}")
    command.make_context("weft", given, context)


def test_the_modules_that_weft_lacks_are_listed() -> None:
    torch = pytest.importorskip("torch")
    theirs = {
        name for name, kind in vars(torch.nn).items()
        if isinstance(kind, type) and issubclass(kind, torch.nn.Module)
    }  # fmt: skip
    old = {"Container", "NLLLoss2d"}  # PyTorch's own names for what it replaced
    apart = {"DataParallel", "RNNBase", "RNNCellBase"} | {n for n in theirs if n[:4] == "Lazy"}
    missing = theirs - set(nn.__all__) - old - apart
    told = {*CODE.findall(PAGE.partition("It lacks")[2].partition("lazy modules")[0])}
    assert missing <= told | {"FractionalMaxPool3d"} and not told & set(nn.__all__)


def test_there_are_commands() -> None:
    assert len(COMMANDS) >= 18
