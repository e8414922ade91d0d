"""GGUF files made to break the reader: each is refused by name, in time and memory of its size."""

from __future__ import annotations

import struct
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from weft.core.errors import FileFormatError
from weft.importers import gguf_values
from weft.importers.gguf import Gguf, open_gguf

F32, Q8_0 = 0, 8
U8, U32, BOOL, STRING, ARRAY, U64 = 0, 4, 7, 8, 9, 10


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
    "version 0": (file(version=0), "GGUF version 0; versions 2 and 3"),
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
    "type": (file([], [entry(kind=4)], b"0" * 8), "type 4 is not read; read are F32"),
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


def test_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = pair("k", ARRAY, array(STRING, 9, text("") * 9))
    nested = pair("n", ARRAY, array(ARRAY, 9, array(U8, 0) * 9))
    monkeypatch.setattr(gguf_values, "MAX_OBJECTS", 21)
    opened(tmp_path, file([words, nested]))  # 9 + 9, and three names and keys
    monkeypatch.setattr(gguf_values, "MAX_OBJECTS", 19)
    assert "more than 19 strings" in refused(tmp_path, file([words, nested]))
    monkeypatch.setattr(gguf_values, "MAX_HEADER", 100)
    assert "more than 100 bytes" in refused(tmp_path, file([words, nested]))


# Time and memory follow the file's size


def words(n: int) -> bytes:
    return file([pair("k", ARRAY, array(STRING, n, text("word") * n))])


def nested(n: int) -> bytes:
    return file([pair("k", ARRAY, array(ARRAY, n, array(U32, 1, b"1234") * n))])


def keys(n: int) -> bytes:
    return file([pair(f"key {i}", U8, b"\1") for i in range(n)])


def tensors(n: int) -> bytes:
    return file([], [entry(f"t{i}", (8,), offset=32 * i) for i in range(n)], b"0" * 32 * n)


def same_words_then_numbers(n: int) -> bytes:
    return file([pair("k", ARRAY, array(U32, n, b"1234" * n)), pair("l", STRING, text("x" * n))])


def lines_run(act: Callable[[], object]) -> int:
    """Lines of weft's importers that run in `act`."""
    count = 0

    def trace(frame: object, event: str, _: object) -> object:
        nonlocal count
        if "importers" not in frame.f_code.co_filename:  # type: ignore[attr-defined]
            return None
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        act()
    finally:
        sys.settrace(before)
    return count


@pytest.mark.parametrize("grow", [words, nested, keys, tensors])
def test_work_is_linear_in_the_number_of_items(
    tmp_path: Path, grow: Callable[[int], bytes]
) -> None:
    small, large = (lines_run(lambda n=n: opened(tmp_path, grow(n))) for n in (100, 800))
    assert 100 < small < large < 8.5 * small


def test_numbers_in_bulk_take_no_work_each(tmp_path: Path) -> None:
    small, large = (
        lines_run(lambda n=n: opened(tmp_path, same_words_then_numbers(n))) for n in (10, 10_000)
    )
    assert small == large


def memory(tmp_path: Path, content: bytes) -> int:
    """Bytes allocated at most while a file is read, or refused."""
    (tmp_path / "bad.gguf").write_bytes(content)
    tracemalloc.start()
    try:
        open_gguf(tmp_path / "bad.gguf")
    except FileFormatError:
        pass
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    return peak


@pytest.mark.parametrize("case", HOSTILE)
def test_nothing_is_allocated_from_a_number_alone(tmp_path: Path, case: str) -> None:
    content, _ = HOSTILE[case]
    assert memory(tmp_path, content) < 50_000 + 10 * len(content)


@pytest.mark.parametrize("grow", [words, nested, keys, tensors])
def test_memory_follows_the_size(tmp_path: Path, grow: Callable[[int], bytes]) -> None:
    content = grow(5000)
    assert memory(tmp_path, content) < 50_000 + 20 * len(content)
