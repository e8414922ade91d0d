"""weft.save and weft.load_tensors: files that safetensors itself reads, and those that it wrote."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch

import weft
from weft import nn, optim
from weft.core.errors import DTypeError, FileFormatError, StorageError, UsageError


def test_both_ways(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    tensors = {
        "a": weft.ones((2, 3)), "b": weft.tensor([1, 2]), "c": weft.ones(3).cast("bfloat16"),
        "d": np.zeros((0, 4), np.float16), "e": weft.tensor(2.5), "f": weft.ones((3, 2)).T,
    }  # fmt: skip
    weft.save(tensors, path, {"made": "here"})
    theirs = safetensors.torch.load_file(path)
    assert {k: list(v.shape) for k, v in theirs.items()} == {
        "a": [2, 3], "b": [2], "c": [3], "d": [0, 4], "e": [], "f": [2, 3],
    }  # fmt: skip
    safetensors.torch.save_file({"w": torch.arange(6.0).reshape(2, 3)}, path)
    assert weft.load_tensors(path)["w"].tolist() == [[0, 1, 2], [3, 4, 5]]


def test_a_module_and_its_optimiser(tmp_path: Path) -> None:
    net = nn.Linear(3, 2)
    opt = optim.Adam(net.parameters())
    net(weft.ones((1, 3))).sum().backward()
    opt.step()
    weft.save(net.state_dict(), tmp_path / "net.safetensors")
    weft.save(opt.state_dict(), tmp_path / "opt.safetensors")
    other = nn.Linear(3, 2)
    other.load_state_dict(weft.load_tensors(tmp_path / "net.safetensors"))
    again = optim.Adam(other.parameters())
    again.load_state_dict(weft.load_tensors(tmp_path / "opt.safetensors"))
    np.testing.assert_array_equal(other.weight.numpy(), net.weight.numpy())
    assert again.count.item() == 1


def test_loaded_tensors_are_ones_own(tmp_path: Path) -> None:
    weft.save({"x": weft.ones(2)}, tmp_path / "x.safetensors")
    x = weft.load_tensors(tmp_path / "x.safetensors", device="cpu")["x"]
    x += 1
    assert weft.load_tensors(tmp_path / "x.safetensors")["x"].tolist() == [1.0, 1.0]


def test_what_cannot_be_written_or_read(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    for wrong in ([weft.ones(2)], {1: weft.ones(2)}, {"x": "text"}, {"x": None}):
        with pytest.raises((UsageError, DTypeError)):
            weft.save(wrong, path)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="metadata"):
        weft.save({"x": weft.ones(2)}, path, {"n": 1})  # type: ignore[dict-item]
    with pytest.raises(StorageError):
        weft.save({"x": weft.ones(2)}, tmp_path / "none" / "x.safetensors")
    path.write_bytes(b"\x80\x04pickle" * 9)
    with pytest.raises(FileFormatError):
        weft.load_tensors(path)
