"""The GGUF reader against the gguf package's writer, and against files made to break it."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from weft.core.errors import FileFormatError
from weft.core.mapped import MappedFile, mapped_files
from weft.importers import gguf_values
from weft.importers.gguf import Gguf, open_gguf

RNG = np.random.default_rng(7)
F32, F16, Q4_0, Q8_0 = 0, 1, 2, 8
U8, I8, U32, F, BOOL, STRING, ARRAY, U64 = 0, 1, 4, 6, 7, 8, 9, 10
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
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
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


# Files by hand


def text(value: str | bytes, length: int | None = None) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw) if length is None else length) + raw


def pair(key: str | bytes, kind: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + value


def array(kind: int, count: int, values: bytes = b"") -> bytes:
    return struct.pack("<IQ", kind, count) + values


def entry(
    name: str | bytes = "t", dims: tuple[int, ...] = (2,), kind: int = F32, offset: int = 0
) -> bytes:
    sizes = struct.pack(f"<I{len(dims)}Q", len(dims), *dims)
    return text(name) + sizes + struct.pack("<IQ", kind, offset)


def file(
    pairs: list[bytes] | None = None,
    entries: list[bytes] | None = None,
    data: bytes = b"",
    *,
    version: int = 3,
    counts: tuple[int | None, int | None] = (None, None),
    alignment: int = 32,
) -> bytes:
    pairs, entries = pairs or [], entries or []
    tensors = len(entries) if counts[0] is None else counts[0]
    keys = len(pairs) if counts[1] is None else counts[1]
    head = b"GGUF" + struct.pack("<IQQ", version, tensors, keys) + b"".join(pairs + entries)
    return head + b"\0" * (-len(head) % alignment) + data


def opened(tmp_path: Path, content: bytes) -> Gguf:
    path = tmp_path / "bad.gguf"
    path.write_bytes(content)
    return open_gguf(path)


def refused(tmp_path: Path, content: bytes) -> str:
    with pytest.raises(FileFormatError) as e:
        opened(tmp_path, content)
    said = str(e.value)
    assert "bad.gguf" in said
    assert len(said.splitlines()) <= 2
    return said


def test_version_2_and_no_tensors(tmp_path: Path) -> None:
    found = opened(tmp_path, file([pair("k", U8, b"\7")], version=2))
    assert (found.version, dict(found.metadata), len(found.tensors)) == (2, {"k": 7}, 0)
    without_padding = b"GGUF" + struct.pack("<IQQ", 3, 0, 0)
    assert not opened(tmp_path, without_padding).metadata


def test_bytes_that_are_no_utf8_come_back(tmp_path: Path) -> None:
    raw = b"\xff\xe2\x96ok\x80"
    content = file([pair("tokens", ARRAY, array(STRING, 1, text(raw)))], [entry(raw)], b"0" * 8)
    found = opened(tmp_path, content)
    (token,), (name,) = found.metadata["tokens"], found.tensors
    assert (
        token.encode("utf-8", "surrogateescape") == raw == name.encode("utf-8", "surrogateescape")
    )
    said = refused(tmp_path, file([], [entry(raw, offset=1)], b"0" * 40))
    said.encode()  # an error about such a name can be printed


def test_the_last_tensor_may_be_padded_or_not(tmp_path: Path) -> None:
    for extra in (0, 1, 24):
        found = opened(tmp_path, file([], [entry()], b"abcdefgh" + b"\0" * extra))
        assert found.tensors["t"].data.tobytes() == b"abcdefgh"


NUMBERS = struct.pack("<I", U32)
TWO = [entry("a", (8,)), entry("b", (8,), offset=32)]
HOSTILE = {
    "empty": (b"", "24 bytes"),
    "short": (b"GGUF" + b"\0" * 19, "24 bytes"),
    "magic": (b"ggjt" + b"\3\0\0\0" + b"\0" * 16, "not a GGUF file"),
    "version 1": (file(version=1), "versions 2 and 3"),
    "version 4": (file(version=4), "versions 2 and 3"),
    "big endian": (file(version=3 << 24), "big-endian"),
    "tensor count": (file(counts=(1 << 60, 0)), "tensors, 33 bytes each"),
    "tensor count by one": (file([], [entry()], counts=(2, 0)), "tensors, 33 bytes each"),
    "key count": (file(counts=(0, 1 << 63)), "keys, 14 bytes each"),
    "key length": (file([text("k", 1 << 63)]), "its name"),
    "no key": (file([pair("", U8, b"\1")]), "0 characters"),
    "long key": (file([pair("k" * 65_536, U8, b"\1")]), "65536 characters"),
    "same key": (file([pair("k", U8, b"\1"), pair("k", U8, b"\2")]), "'k': appears twice"),
    "value type": (file([pair("k", 13, b"\0" * 8)]), "values of type 13"),
    "truth": (file([pair("k", BOOL, b"\2")]), "expected 0 or 1"),
    "truths": (file([pair("k", ARRAY, array(BOOL, 3, b"\0\1\3"))]), "expected 0 or 1"),
    "cut value": (file([pair("k", U64, b"\0")], alignment=1), "needs 8 bytes, 1 are left"),
    "cut text": (file([pair("k", STRING, text("ab", 3))], alignment=1), "needs 3 bytes, 2"),
    "cut length": (file([pair("k", STRING, b"\0\0\0")], alignment=1), "length of a string"),
    "long text": (file([pair("k", STRING, text("", 2**64 - 1))]), "needs 18446744073709551615"),
    "array count": (file([pair("k", ARRAY, array(U32, 1 << 62))]), "numbers, 4 bytes each"),
    "array count wraps": (file([pair("k", ARRAY, array(U64, 1 << 61))]), "numbers, 8 bytes each"),
    "text count": (file([pair("k", ARRAY, array(STRING, 1 << 40))]), "strings, 8 bytes each"),
    "truth count": (file([pair("k", ARRAY, array(BOOL, 1 << 40))]), "truths, 1 bytes each"),
    "array count of arrays": (file([pair("k", ARRAY, array(ARRAY, 1 << 40))]), "arrays, 12 bytes"),
    "array type": (file([pair("k", ARRAY, array(99, 1, b"\0" * 99))]), "values of type 99"),
    "depth": (
        file([pair("k", ARRAY, array(ARRAY, 1) * 5000 + array(U8, 0))]),
        "more than 4 deep",
    ),
    "alignment type": (file([pair("general.alignment", STRING, text("32"))]), "power of two"),
    "alignment truth": (file([pair("general.alignment", BOOL, b"\1")]), "power of two"),
    "alignment 0": (file([pair("general.alignment", U32, b"\0\0\0\0")]), "power of two"),
    "alignment 4": (file([pair("general.alignment", U32, b"\4\0\0\0")]), "power of two"),
    "alignment 48": (file([pair("general.alignment", U32, b"\x30\0\0\0")]), "power of two"),
    "alignment huge": (file([pair("general.alignment", U32, b"\0\0\0\x80")]), "power of two"),
    "alignment -1": (file([pair("general.alignment", 5, b"\xff" * 4)]), "power of two"),
    "name length": (file([], [text("t", 1 << 50) + b"\0" * 30]), "its name"),
    "no name": (file([], [entry("") + b"\0" * 8]), "0 characters"),
    "same name": (file([], [entry(), entry(offset=32)], b"0" * 64), "'t': appears twice"),
    "no dimensions": (file([], [entry(dims=()) + b"\0" * 8], b"0" * 8), "0 dimensions"),
    "five dimensions": (file([], [entry(dims=(1,) * 5)], b"0" * 8), "5 dimensions"),
    "dimensions": (file([], [text("t") + b"\xff" * 4 + b"\0" * 20]), "4294967295 dimensions"),
    "dimension 0": (file([], [entry(dims=(4, 0))], b"0" * 8), "is 0"),
    "product": (file([], [entry(dims=(1 << 62, 4))], b"0" * 8), "the file has"),
    "product wraps to 0": (file([], [entry(dims=(1 << 32, 1 << 32))], b"0" * 8), "the file has"),
    "product of -1": (file([], [entry(dims=((1 << 63) - 1, 2))], b"0" * 8), "the file has"),
    "one more": (file([], [entry(dims=(3,))], b"0" * 8), "truncated"),
    "type": (file([], [entry(kind=4)], b"0" * 8), "type 4 is not known; known are F32"),
    "type huge": (file([], [entry(kind=1 << 31)], b"0" * 8), "type 2147483648"),
    "block": (file([], [entry(dims=(33,), kind=Q8_0)], b"0" * 68), "blocks of 32"),
    "offset": (file([], [entry(offset=32)], b"0" * 40), "expected 0"),
    "offset wraps": (file([], [entry(offset=2**64 - 32)], b"0" * 40), "expected 0"),
    "overlap": (file([], [entry("a", (8,)), entry("b", (8,))], b"0" * 64), "overlaps"),
    "unaligned": (file([], [entry("a"), entry("b", offset=8)], b"0" * 64), "expected 32"),
    "hole": (file([], [entry("a"), entry("b", offset=64)], b"0" * 128), "expected 32"),
    "order": (file([], TWO[::-1], b"0" * 64), "expected 0"),
    "truncated": (file([], TWO, b"0" * 63), "truncated"),
    "no data": (file([], TWO), "truncated"),
    "trailing": (file([], TWO, b"0" * 65), "1 bytes at the end"),
    "forgotten tensor": (file([], TWO, b"0" * 64, counts=(1, 0)), "belong to no tensor"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_files_are_refused_by_name(tmp_path: Path, case: str) -> None:
    content, said = HOSTILE[case]
    assert said in refused(tmp_path, content)


def test_not_a_file(tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match="regular file"):
        open_gguf(tmp_path)
    with pytest.raises(FileFormatError, match="cannot be read"):
        open_gguf(tmp_path / "missing.gguf")


def test_big_endian_of_the_package(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "b.gguf", "llama", endianess=gguf.GGUFEndian.BIG)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(FileFormatError, match="big-endian"):
        open_gguf(tmp_path / "b.gguf")


def test_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = pair("k", ARRAY, array(STRING, 9, text("") * 9))
    nested = pair("n", ARRAY, array(ARRAY, 9, array(U8, 0) * 9))
    monkeypatch.setattr(gguf_values, "MAX_OBJECTS", 21)
    opened(tmp_path, file([words, nested]))  # 9 + 9, and three names and keys
    monkeypatch.setattr(gguf_values, "MAX_OBJECTS", 19)
    assert "more than 19 strings" in refused(tmp_path, file([words, nested]))
    monkeypatch.setattr(gguf_values, "MAX_HEADER", 100)
    assert "more than 100 bytes" in refused(tmp_path, file([words, nested]))
