"""Scripts import from PyTorch's files, save into open files, and wrap modules for several GPUs."""

from __future__ import annotations

import importlib
import io
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch as theirs

import weft.torch as torch
from weft.core.errors import FileFormatError, UsageError
from weft.torch.paths import FILES

NAMES = [f"{home}.{name}".lstrip(".") for home, files in FILES.items() for name in files.split()]


@pytest.mark.parametrize("path", NAMES)
def test_names_of_pytorchs_files(path: str) -> None:
    """Each name of the file that weft.torch's package has is found by the file's path too."""
    other = importlib.import_module(f"torch.{path}")
    mine = importlib.import_module(f"weft.torch.{path}")
    home = importlib.import_module(f"weft.torch.{path}".rpartition(".")[0])
    if mine.__name__.startswith("weft") and hasattr(mine, "__file__") and mine.__spec__:
        return  # a file of weft's own
    own = [n for n, v in vars(other).items() if getattr(v, "__module__", "") == other.__name__]
    for name in own:
        there = getattr(home, name, None)
        if there is not None and name[0] != "_" and not isinstance(there, types.ModuleType):
            assert getattr(mine, name) is there
    with pytest.raises(AttributeError):
        mine.no_such_name  # noqa: B018


def test_a_script_that_imports_files_first() -> None:
    script = """
from weft.torch.nn.modules.batchnorm import _BatchNorm
from weft.torch.nn.modules.utils import _pair
from weft.torch.optim.swa_utils import AveragedModel
from weft.torch.nn.parameter import Parameter
from weft.torch.utils.data.dataset import Dataset
import weft.torch.nn.modules.conv as conv, weft.torch.nn as nn
assert isinstance(nn.BatchNorm2d(2), _BatchNorm) and _pair(3) == (3, 3) and _pair([1, 2]) == (1, 2)
assert conv.Conv2d is nn.Conv2d and nn.Parameter is Parameter
"""
    subprocess.run([sys.executable, "-c", script], check=True)


def test_open_files(tmp_path: Path) -> None:
    held: Any = {"x": torch.tensor([1.0, 2.0]), "step": np.float32(3), "more": [None, "a", (1, 2)]}
    file = io.BytesIO(b"before")
    file.seek(6)
    torch.save(held, file)
    file.seek(6)
    found = torch.load(file)
    assert found["x"].tolist() == [1, 2] and found["step"] == 3
    assert found["more"] == [None, "a", (1, 2)] and file.getvalue().startswith(b"before")
    with (tmp_path / "t.pt").open("wb") as out:
        torch.save(np.arange(6.0).reshape(2, 3), out)
    with (tmp_path / "t.pt").open("rb") as given:
        assert torch.load(given).numpy().tolist() == [[0, 1, 2], [3, 4, 5]]
    for wrong in (3, None, (tmp_path / "text").open("w"), io.StringIO()):
        with pytest.raises(UsageError, match="open for bytes"):
            torch.save(held, wrong)
        with pytest.raises((UsageError, OSError)):
            torch.load(wrong)
    with pytest.raises(FileFormatError, match=r"^load: "):
        torch.load(io.BytesIO(b"\x80\x02pickled bytes that are none of ours"))


def test_modules_for_several_gpus() -> None:
    made = []
    for m in (torch, theirs):
        inner = m.nn.Linear(2, 1)
        whole = m.nn.DataParallel(inner)
        assert whole.module is inner and list(whole.state_dict()) == [
            "module.weight",
            "module.bias",
        ]
        x = m.ones(3, 2)
        made.append(bool((whole(x) == inner(x)).all()))
    assert made == [True, True]
    inner = torch.nn.Linear(2, 1)
    x = torch.ones(3, 2)
    assert (torch.nn.parallel.data_parallel(inner, (x,)) == inner(x)).all()
    with pytest.raises(UsageError, match="2 devices are named"):
        torch.nn.DataParallel(torch.nn.Linear(2, 1), device_ids=[0, 1])


def test_the_accelerator() -> None:
    here = torch.accelerator.current_accelerator()
    assert torch.accelerator.is_available() == (here is not None)
    assert (torch.accelerator.device_count() > 0) == (here is not None)
    assert torch.accelerator.current_device_index() == 0
    torch.accelerator.set_device_index(0)
    with pytest.raises(UsageError, match='device="cuda:1"'):
        torch.accelerator.set_device_index(1)


def test_what_a_script_asks_of_its_pytorch() -> None:
    assert torch.version.cuda is None and torch.__version__.startswith("2.")
    for kind in ("LSTM", "GRU", "RNN"):
        assert isinstance(getattr(torch.nn, kind)(2, 3), torch.nn.RNNBase)
        assert isinstance(getattr(torch.nn, f"{kind}Cell")(2, 3), torch.nn.RNNCellBase)
    assert not isinstance(torch.nn.Linear(2, 3), torch.nn.RNNBase)
