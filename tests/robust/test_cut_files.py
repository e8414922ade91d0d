"""A weights file that is cut short while a model reads it where it lies."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from robust_kit import BERT, tiny

import weft
from weft.core.errors import FileFormatError
from weft.importers.safetensors import SINGLE


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tiny(tmp_path)


@pytest.mark.parametrize("device", ["cpu", "oracle"])
def test_weights_cut_short_after_loading(folder: Path, device: str) -> None:
    """Reading a mapped file beyond its end kills a process: the next use refuses instead. A file
    replaced by renaming changes nothing."""
    model = weft.load(folder, device=device)
    want = model.generate([1, 2], max_new_tokens=3)
    path = folder / SINGLE
    shutil.copy(path, folder / "copy")
    os.replace(folder / "copy", path)
    assert model.generate([1, 2], max_new_tokens=3) == want
    model = weft.load(folder, device=device)
    os.truncate(path, 4096)
    with pytest.raises(FileFormatError, match="cut to 4096 bytes from"):
        model.generate([1, 2], max_new_tokens=3)
    with pytest.raises(FileFormatError, match="cut to 4096 bytes from"):
        model.logits([1, 2])
    with pytest.raises(FileFormatError, match="truncated"):
        weft.load(folder, device=device)


def test_an_encoder_cut_short_after_loading(tmp_path: Path) -> None:
    model = weft.load(tiny(tmp_path, BERT), device="cpu")
    os.truncate(tmp_path / SINGLE, 4096)
    with pytest.raises(FileFormatError, match="cut to 4096 bytes from"):
        model.embed_ids([[1, 2]])


def test_converted_weights_need_no_file(folder: Path) -> None:
    model = weft.load(folder, device="cpu", dtype="bfloat16")
    want = model.generate([1, 2], max_new_tokens=3)
    os.truncate(folder / SINGLE, 4096)
    assert model.generate([1, 2], max_new_tokens=3) == want
