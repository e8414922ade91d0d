"""GGUF models in several parts, as the gguf package splits them."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf_files import finish

from weft.core.errors import FileFormatError
from weft.importers.gguf import open_gguf

COUNT = 5  # tensors, two to a part


def split(folder: Path, name: str = "m") -> list[Path]:
    """Three parts."""
    writer = gguf.GGUFWriter(folder / f"{name}.gguf", "llama", split_max_tensors=2)
    writer.add_string("general.name", "parted")
    for i in range(COUNT):
        writer.add_tensor(f"t{i}", np.full((2, 3), i, np.float32))
    finish(writer)
    return [folder / f"{name}-{i:05d}-of-00003.gguf" for i in (1, 2, 3)]


def changed(path: Path, old: bytes, new: bytes) -> None:
    content = path.read_bytes()
    assert content.count(old) == 1
    path.write_bytes(content.replace(old, new))


def test_any_part_opens_all(tmp_path: Path) -> None:
    for part in split(tmp_path):
        found = open_gguf(part)
        assert found.metadata["general.name"] == "parted"
        assert list(found.tensors) == [f"t{i}" for i in range(COUNT)]
        for i, tensor in enumerate(found.tensors.values()):
            assert tensor.shape == (2, 3)
            assert (tensor.data.view(np.float32) == i).all()


@pytest.mark.parametrize("missing", [0, 1, 2])
def test_a_missing_part_is_named(tmp_path: Path, missing: int) -> None:
    parts = split(tmp_path)
    parts[missing].unlink()
    with pytest.raises(FileFormatError, match=rf"{parts[missing].name}: part {missing + 1} of 3"):
        open_gguf(parts[(missing + 1) % 3])


def test_a_damaged_part_is_named(tmp_path: Path) -> None:
    parts = split(tmp_path)
    parts[2].write_bytes(parts[2].read_bytes()[:-40])
    with pytest.raises(FileFormatError, match=rf"{parts[2].name}.*truncated"):
        open_gguf(parts[0])


@pytest.mark.parametrize("name", ["m.gguf", "m-00001-of-00004.gguf", "m-00007-of-00003.gguf"])
def test_a_part_under_another_name(tmp_path: Path, name: str) -> None:
    path = split(tmp_path)[0].rename(tmp_path / name)
    with pytest.raises(FileFormatError, match=r"does not end in -00001-of-00003\.gguf"):
        open_gguf(path)


def test_parts_of_another_order_or_model(tmp_path: Path) -> None:
    parts = split(tmp_path)
    parts[1].write_bytes(parts[2].read_bytes())
    with pytest.raises(FileFormatError, match=r"split\.no and split\.count are \(2, 3\)"):
        open_gguf(parts[0])
    (tmp_path / "other").mkdir()
    other = split(tmp_path / "other")
    changed(other[1], b"t3", b"t0")
    parts[1].write_bytes(other[1].read_bytes())
    with pytest.raises(FileFormatError, match=rf"'t0' is in {parts[0].name} too"):
        open_gguf(parts[0])


def test_the_number_of_tensors_is_checked(tmp_path: Path) -> None:
    parts = split(tmp_path)
    key = b"split.tensors.count" + (5).to_bytes(4, "little")
    changed(parts[0], key + b"\5\0\0\0", key + b"\6\0\0\0")
    with pytest.raises(FileFormatError, match=r"count is 6; its 3 parts hold 5 tensors"):
        open_gguf(parts[0])


def test_a_count_that_is_no_number(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_string("split.count", "3")
    finish(writer)
    with pytest.raises(FileFormatError, match=r"split\.count is '3'; expected a whole number"):
        open_gguf(tmp_path / "m.gguf")
