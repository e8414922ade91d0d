"""`weft port`: what a script uses of PyTorch, and the script with weft's imports."""

from __future__ import annotations

import ast
import json
import operator
import types
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

import weft.torch
from weft.cli.main import cli
from weft.core.errors import UsageError
from weft.torch.absent import reason
from weft.torch.porting import DIFFERS, LACKING, names_in, ported
from weft.torch.porting_names import MISSING_METHODS

SCRIPT = """
import torch
import torch.nn as nn, os  # two
import torch.nn.functional as F
from torch import (
    optim,
    nn as layers,
)
if True: from torch.nn import Linear as L
import torchvision
from .torch import mine

é = "ü"; import torch as t
net = nn.Sequential(L(3, 4), layers.ReLU())
x = torch.zeros(2, 3)
y = F.softmax(net(x), dim=-1)
z = torch.sofmax(y, dim=-1)
s = torch.sum(x, dim=0, wrong=1, keepdim=True)
y.to_sparse().values()
torch.save(net.state_dict(), os.devnull)
f = torch.fft.rfft(x)
w = t.ones(3)
"""


def test_each_name_gets_its_verdict() -> None:
    found = {(u.line, u.name): (u.verdict, u.note) for u in names_in(SCRIPT)}
    assert found[14, "torch.nn.Sequential"] == ("same", "")
    assert found[9, "torch.nn.Linear"] == ("same", "")
    assert found[15, "torch.zeros"] == ("same", "")
    assert found[16, "torch.nn.functional.softmax"] == ("same", "")
    assert found[17, "torch.sofmax"] == ("missing", "weft has torch.softmax")
    assert found[18, "torch.sum"] == ("same", "")
    assert found[18, "torch.sum(wrong=)"][0] == "missing"
    assert (18, "torch.sum(keepdim=)") not in found
    assert found[19, ".to_sparse"][0] == "missing" and (19, ".values") not in found
    assert found[20, "torch.save"] == ("differs", DIFFERS["torch.save"])
    assert found[21, "torch.fft.rfft"] == ("missing", LACKING["torch.fft"])
    assert found[10, "torchvision"][0] == "missing"
    assert found[22, "torch.ones"][0] == "same"
    assert not any("mine" in name or name == "os" for _, name in found)


def test_only_imports_change() -> None:
    made = ported(SCRIPT)
    assert len(made.splitlines()) <= len(SCRIPT.splitlines())
    lines = made.splitlines()
    assert lines[1] == "import weft.torch as torch"
    assert lines[2] == "import weft.torch.nn as nn; import os  # two"
    assert "from weft.torch import optim, nn as layers" in lines
    assert "if True: from weft.torch.nn import Linear as L" in lines
    assert 'é = "ü"; import weft.torch as t' in lines
    assert "from .torch import mine" in lines and "import torchvision" in lines
    ast.parse(made)
    rest = SCRIPT.splitlines()[13:]
    assert lines[-len(rest) :] == rest


def test_a_ported_script_gives_the_same_numbers(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import torch\nimport torch.nn.functional as F\nfrom torch import nn, optim\n"
        "net = nn.Linear(2, 1)\n"
        "with torch.no_grad():\n    net.weight.fill_(0.5)\n    net.bias.zero_()\n"
        "x = torch.arange(6.0).reshape(3, 2)\nopt = optim.SGD(net.parameters(), lr=0.1)\n"
        "for _ in range(3):\n    loss = F.mse_loss(net(x), x.sum(dim=1, keepdim=True))\n"
        "    opt.zero_grad()\n    loss.backward()\n    opt.step()\nlast = loss.item()\n"
    )
    found = CliRunner().invoke(cli, ["port", str(script), "-o", str(tmp_path / "weft.py")])
    assert found.exit_code == 0 and "lacks 0" in found.output
    theirs: dict[str, float] = {}
    ours: dict[str, float] = {}
    exec(script.read_text(), theirs)
    exec((tmp_path / "weft.py").read_text(), ours)
    assert ours["last"] == pytest.approx(theirs["last"], rel=1e-6)


def test_json(tmp_path: Path) -> None:
    script = tmp_path / "x.py"
    script.write_text("import torch\ntorch.ones(2)\n")
    told = json.loads(CliRunner().invoke(cli, ["port", str(script), "--json"]).output)
    assert told["names"][-1] == {"line": 2, "name": "torch.ones", "verdict": "same", "note": ""}


@pytest.mark.parametrize("source", ["def f(:", "x = \0", "(" * 5000, "-" * 200_000 + "1"])
def test_what_is_no_python(source: str) -> None:
    with pytest.raises(UsageError, match="is not Python"):
        names_in(source)


def test_the_list_of_methods_is_whole() -> None:
    def public(thing: object) -> set[str]:
        return {name for name in dir(thing) if not name.startswith("_")}

    lacking = public(torch.Tensor) - public(weft.torch.Tensor)
    assert lacking >= MISSING_METHODS
    other = {"indices", "values", "layout", "new", "solve", "resize", "storage", "volatile"}
    other |= {name for kind in (dict, list, str, set, int, float, bytes) for name in dir(kind)}
    assert lacking - MISSING_METHODS <= other | {"map_", "set_"}


def test_every_difference_names_something() -> None:
    for path in DIFFERS:
        (used,) = names_in(f"import torch\nx = {path}\n")
        assert used.verdict == "differs", path
        assert hasattr(weft.torch, path.split(".")[1])


EXAMPLE = """
import torch
import torch.nn.functional as F
from torch import nn, optim

net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
opt = optim.AdamW(net.parameters(), lr=1e-3)
x = torch.randn(16, 4)
spectrum = torch.fft.rfft(x, dim=1).abs()
loss = F.cross_entropy(net(x), torch.zeros(16, dtype=torch.long))
loss.backward()
opt.step()
print(x.sum(dim=0).to_sparse(), torch.sofmax(x, dim=1))
torch.save(net.state_dict(), "net.pt")
"""


def test_the_docs_show_what_it_prints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(EXAMPLE)
    said = CliRunner().invoke(cli, ["port", "train.py", "-o", "train_weft.py"]).output
    page = (Path(__file__).parents[2] / "docs/coming-from.md").read_text(encoding="utf-8")
    shown = page.split("$ weft port train.py -o train_weft.py\n")[1].split("```")[0]
    assert shown == said


def test_a_script_may_import_what_it_does_not_use() -> None:
    """Parts that weft.torch lacks import; what a script does with one says what weft has."""
    script = """
import torch
import torch.onnx, torch.ao.quantization
from torch.distributed import init_process_group
from torch.utils.tensorboard import SummaryWriter
if torch.distributed.is_available() or isinstance(3, SummaryWriter):
    init_process_group("gloo")
"""
    exec(compile(ported(script), "script", "exec"), {})
    uses = (
        lambda: weft.torch.onnx.export(None, (), "net.onnx"),
        lambda: weft.torch.jit.script(len),
        lambda: weft.torch.distributed.ReduceOp.SUM,
    )
    for use in uses:
        with pytest.raises(UsageError, match=r"weft lacks this part of PyTorch \(.{8,}\)"):
            use()
    found = {used.name: used.verdict for used in names_in(script)}
    assert found["torch.onnx"] == found["torch.distributed.init_process_group"] == "missing"


SPACES = ["", "Tensor", "nn", "nn.functional", "nn.init", "nn.utils", "nn.utils.rnn", "optim",
          "optim.lr_scheduler", "distributions", "utils", "utils.data", "func", "autograd", "amp",
          "linalg", "special", "masked", "signal.windows", "random", "testing"]  # fmt: skip
PYTHONS = ("typing", "typing_extensions", "collections", "functools", "builtins", "math", "enum")


def test_every_name_is_there_or_refused_with_a_reason() -> None:
    silent = []
    for space in SPACES:
        theirs: Any = operator.attrgetter(space)(torch) if space else torch
        ours: Any = operator.attrgetter(space)(weft.torch) if space else weft.torch
        listed = getattr(theirs, "__all__", None) or dir(theirs)
        for name in {*listed, *(dir(torch) if not space else ())}:
            value = getattr(theirs, name, None)
            home = value.__name__ if isinstance(value, types.ModuleType) else (
                getattr(value, "__module__", "") or "")  # fmt: skip
            foreign = space != "Tensor" and home.partition(".")[0] in PYTHONS
            # a module outside of __all__ is there only if a test before has imported it
            chance = name not in getattr(theirs, "__all__", ())
            module = isinstance(value, types.ModuleType) and (chance or home[:5] != "torch")
            if name[0] == "_" or foreign or module or hasattr(ours, name):
                continue
            if not reason(f"torch.{space}.{name}".replace("..", ".")):
                silent.append(f"{space}.{name}")
    assert not silent


def test_a_probe_for_a_name_makes_no_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """Libraries and tests ask for thousands of names; a guess takes milliseconds."""
    monkeypatch.setattr("weft.core.missing.nearest", lambda *given: pytest.fail("a guess"))
    assert not hasattr(weft.torch, "sofmax") and getattr(weft.nn, "Liner", None) is None


def test_errors_say_what_to_use() -> None:
    for name, why in (("polar", "complex"), ("spmm", "sparse"), ("hub", "weft.load"),
                      ("sofmax", "did you mean softmax")):  # fmt: skip
        with pytest.raises(AttributeError, match=why):
            getattr(weft.torch, name)
    for name, why in (("to_sparse", "sparse"), ("data_ptr", "numpy"), ("sofmax", "softmax")):
        with pytest.raises(AttributeError, match=why):
            getattr(weft.torch.ones(2), name)
    (used,) = names_in("import torch\nx = torch.polar\n")
    assert used.verdict == "missing" and "complex" in used.note
