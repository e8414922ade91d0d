"""The GGUF reader against the gguf package's writer, and against damage to what it writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf_files import finish
from hypothesis import HealthCheck, given, settings, strategies as st

from weft.core.errors import FileFormatError
from weft.host.mapped import MappedFile, mapped_files
from weft.importers.gguf import Gguf, open_gguf

RNG = np.random.default_rng(7)
Q4_0, Q8_0 = 2, 8
TENSORS = {
    "token_embd.weight": RNG.standard_normal((5, 64)).astype(np.float32),
    "blk.0.attn_q.weight": RNG.integers(0, 256, (6, 2 * 18), np.uint8),  # Q4_0 [6, 64]
    "blk.0.ffn_gate_exps.weight": RNG.integers(0, 256, (3, 2, 34), np.uint8),  # Q8_0 [3, 2, 32]
    "norm": np.arange(7, dtype=np.float16),
}
KINDS = {"blk.0.attn_q.weight": Q4_0, "blk.0.ffn_gate_exps.weight": Q8_0}
KEYS: dict[str, tuple[str, Any]] = {
    "a.u8": ("uint8", 255),
    "a.i8": ("int8", -128),
    "a.u16": ("uint16", 65535),
    "a.i16": ("int16", -32768),
    "a.u32": ("uint32", 2**32 - 1),
    "a.i32": ("int32", -(2**31)),
    "a.f32": ("float32", 0.25),
    "a.u64": ("uint64", 2**64 - 1),
    "a.i64": ("int64", -(2**63)),
    "a.f64": ("float64", 0.1),
    "a.yes": ("bool", True),
    "a.text": ("string", "naïve ▁ text"),
    "a.ints": ("array", [1, -2, 3]),
    "a.floats": ("array", [0.5, -1.5]),
    "a.truths": ("array", [True, False, True]),
    "a.words": ("array", ["a", "", "été"]),
    "a.nested": ("array", [[1, 2], [3]]),
    "a.nested_words": ("array", [["x"], ["y", "z"]]),
}


def written(path: Path, **options: Any) -> Path:
    alignment = options.pop("alignment", None)
    writer = gguf.GGUFWriter(path, "llama", **options)
    if alignment:
        writer.add_custom_alignment(alignment)
    for key, (kind, value) in KEYS.items():
        getattr(writer, f"add_{kind}")(key, value)
    for name, data in TENSORS.items():
        kind = gguf.GGMLQuantizationType(KINDS[name]) if name in KINDS else None
        writer.add_tensor(name, data, raw_dtype=kind)
    finish(writer)
    return path


def plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.tolist()
    return [plain(v) for v in value] if isinstance(value, list) else value


def check_content(found: Gguf) -> None:
    assert {k: plain(found.metadata[k]) for k in KEYS} == {k: v for k, (_, v) in KEYS.items()}
    assert found.metadata["general.architecture"] == "llama"
    assert set(found.tensors) == set(TENSORS)
    for name, value in TENSORS.items():
        tensor = found.tensors[name]
        raw = value.view(np.uint8).reshape(-1, value.shape[-1] * value.itemsize)
        np.testing.assert_array_equal(tensor.data, raw)
        assert tensor.nbytes == value.nbytes
    assert found.nbytes == sum(v.nbytes for v in TENSORS.values())


@pytest.mark.parametrize("alignment", [None, 8, 64, 4096])
def test_what_the_package_writes_is_read(tmp_path: Path, alignment: int | None) -> None:
    path = written(tmp_path / "x.gguf", alignment=alignment)
    found = open_gguf(path)
    check_content(found)
    assert found.version == 3
    theirs = {t.name: t for t in gguf.GGUFReader(path).tensors}
    for name, tensor in found.tensors.items():
        assert tensor.shape == tuple(theirs[name].shape.tolist()[::-1])
        assert tensor.start == theirs[name].data_offset
        assert tensor.kind.name == theirs[name].tensor_type.name
    assert found.tensors["blk.0.ffn_gate_exps.weight"].shape == (3, 2, 32)
    assert found.tensors["blk.0.ffn_gate_exps.weight"].data.shape == (6, 34)
    assert found.tensors["norm"].data.shape == (1, 14)


def test_data_is_a_view_of_the_file_that_cannot_be_written(tmp_path: Path) -> None:
    tensor = open_gguf(written(tmp_path / "x.gguf")).tensors["token_embd.weight"]
    assert isinstance(tensor.file, MappedFile)
    assert mapped_files([tensor.data]) == [tensor.file]
    assert tensor.data.ctypes.data == tensor.data.ctypes.data
    with pytest.raises(ValueError, match="read-only"):
        tensor.data[0, 0] = 1


def test_metadata_cannot_be_changed(tmp_path: Path) -> None:
    found = open_gguf(written(tmp_path / "x.gguf"))
    with pytest.raises(TypeError):
        found.metadata["a.u8"] = 1  # type: ignore[index]
    with pytest.raises(ValueError, match="read-only"):
        found.metadata["a.ints"][0] = 5
    assert found.metadata["a.floats"].dtype == np.float32
    assert found.metadata["a.truths"].dtype == np.bool_


def test_big_endian_of_the_package(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "b.gguf", "llama", endianess=gguf.GGUFEndian.BIG)
    finish(writer)
    with pytest.raises(FileFormatError, match="big-endian"):
        open_gguf(tmp_path / "b.gguf")


# Damage


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return written(tmp_path_factory.mktemp("gguf") / "x.gguf").read_bytes()


def check_damaged(path: Path, content: bytes) -> None:
    """A damaged file is refused in a line or two, or read with every tensor inside of it."""
    path.write_bytes(content)
    try:
        found = open_gguf(path)
    except FileFormatError as e:
        assert path.name in str(e) and len(str(e).splitlines()) <= 2
        return
    for tensor in found.tensors.values():
        assert 0 <= tensor.start <= tensor.start + tensor.nbytes <= len(content)
        assert tensor.data.nbytes == tensor.nbytes
    check_disjoint(found)


def check_disjoint(found: Gguf) -> None:
    end = 0
    for tensor in sorted(found.tensors.values(), key=lambda t: t.start):
        assert tensor.start >= end
        end = tensor.start + tensor.nbytes


def header_size(content: bytes) -> int:
    return len(content) - sum(-(-v.nbytes // 32) * 32 for v in TENSORS.values())


NUMBERS = [0, 1, 2, 7, 31, 33, 255, 2**15, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**40, 2**61]
NUMBERS += [2**62, 2**63 - 1, 2**63, 2**64 - 32, 2**64 - 1]


@settings(
    max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.data())
def test_damaged_files(tmp_path: Path, sound: bytes, data: st.DataObject) -> None:
    content = bytearray(sound)
    last = header_size(sound)
    for _ in range(data.draw(st.integers(1, 3))):
        if not content:  # cut at 0: nothing is left to damage
            break
        at = data.draw(st.integers(0, min(last, len(content)) - 1))
        how = data.draw(st.sampled_from(["flip", "cut", "drop", "repeat", "number", "bytes"]))
        if how == "flip":
            content[at] ^= 1 << data.draw(st.integers(0, 7))
        elif how == "cut":
            del content[data.draw(st.integers(1, len(content))) :]
        elif how == "drop":
            del content[at : at + data.draw(st.integers(1, 40))]
        elif how == "repeat":
            content[at:at] = content[at : at + data.draw(st.integers(1, 400))]
        elif how == "number":
            number = data.draw(st.sampled_from(NUMBERS))
            size = data.draw(st.sampled_from([4, 8])) if number < 2**32 else 8
            content[at : at + size] = number.to_bytes(size, "little")
        else:
            content[at : at + 1] = data.draw(st.binary(max_size=12))
    check_damaged(tmp_path / "damaged.gguf", bytes(content))


def test_every_place_of_the_header_as_a_huge_number(tmp_path: Path, sound: bytes) -> None:
    for at in range(4, header_size(sound)):
        number = 2**61 + 1 if at % 2 else 2**64 - 1
        content = sound[:at] + number.to_bytes(8, "little") + sound[at + 8 :]
        check_damaged(tmp_path / "damaged.gguf", content)


def test_every_cut_is_refused(tmp_path: Path, sound: bytes) -> None:
    """Only the last tensor's padding may be missing."""
    ends = len(sound) - 18  # `norm` has 14 bytes, padded to 32
    for size in [*range(0, ends, 3), ends - 1]:
        (tmp_path / "cut.gguf").write_bytes(sound[:size])
        with pytest.raises(FileFormatError, match=r"cut\.gguf"):
            open_gguf(tmp_path / "cut.gguf")
    (tmp_path / "cut.gguf").write_bytes(sound[:ends])
    check_content(open_gguf(tmp_path / "cut.gguf"))
