"""The safetensors reader against the safetensors package, and against files made to break it."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from weft.core.errors import FileFormatError, UsageError
from weft.importers.safetensors import INDEX, SafetensorsFile, open_checkpoint, save_file

SAMPLE = {
    "a": np.arange(6, dtype=np.float32).reshape(2, 3),
    "b": np.arange(3).astype(ml_dtypes.bfloat16),
    "scalar": np.array(3.5, np.float16),
    "empty": np.zeros((0, 4), np.int8),
    "flags": np.array([True, False]),
    "ids": np.arange(5, dtype=np.int64),
}


def raw(header: object, data: bytes = b"", length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def entry(dtype: str = "F32", shape: object = (2,), offsets: object = (0, 8)) -> dict:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


def refused(tmp_path: Path, content: bytes) -> str:
    path = tmp_path / "bad.safetensors"
    path.write_bytes(content)
    with pytest.raises(FileFormatError) as e:
        SafetensorsFile(path)
    assert "bad.safetensors" in str(e.value)
    return str(e.value)


def test_round_trip_and_agreement_with_the_package(tmp_path: Path) -> None:
    from safetensors.numpy import load_file

    path = tmp_path / "x.safetensors"
    save_file(path, SAMPLE, {"format": "pt"})
    ours, theirs = SafetensorsFile(path), load_file(path)
    assert ours.metadata == {"format": "pt"}
    assert set(ours) == set(theirs) == set(SAMPLE)
    for name, value in ours.items():
        assert value.dtype == theirs[name].dtype == SAMPLE[name].dtype
        np.testing.assert_array_equal(value, theirs[name])
        assert not value.flags.writeable or value.size == 0


def test_views_are_not_copies(tmp_path: Path) -> None:
    save_file(tmp_path / "x.safetensors", {"a": SAMPLE["a"]})
    file = SafetensorsFile(tmp_path / "x.safetensors")
    assert file["a"].ctypes.data == file["a"].ctypes.data


def test_unaligned_data_is_read(tmp_path: Path) -> None:
    values = np.array([1.5, -2.0], np.float32)
    header = json.dumps({"x": entry()}).encode()
    header += b" " * ((3 - len(header)) % 4)  # the data starts at an odd address
    path = tmp_path / "x.safetensors"
    path.write_bytes(raw(header, values.tobytes()))
    got = SafetensorsFile(path)["x"]
    assert got.flags.aligned
    np.testing.assert_array_equal(got, values)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "8-byte length"),
        (b"1234567", "8-byte length"),
        (struct.pack("<Q", 1 << 63) + b"{}", "header claims"),
        (raw(b"{}", length=200), "header claims"),
        (raw(b"[]"), "not a JSON object"),
        (raw(b"{"), "not valid JSON"),
        (raw(b"{\xff}"), "UTF-8"),
        (raw(b'{"a":' + b"[" * 100_000), "nested"),
        (raw(b'{"a":1' + b"0" * 5000 + b"}"), "not valid JSON"),
        (raw(b'{"x":1,"x":2}'), "appears twice"),
        (raw(b'{"x":{"dtype":"F32","dtype":"F16","shape":[2],"data_offsets":[0,8]}}'), "twice"),
        (raw({"__metadata__": {"a": 1}}), "__metadata__"),
        (raw({"x": 3}), "expected exactly dtype"),
        (raw({"x": {**entry(), "extra": 1}}, b"0" * 8), "expected exactly dtype"),
        (raw({"x": entry("F33")}, b"0" * 8), "'F33' is not supported"),
        (raw({"x": {**entry(), "dtype": [1]}}, b"0" * 8), "not supported"),
        (raw({"x": entry(shape=(-2,))}, b"0" * 8), "none negative"),
        (raw({"x": entry(shape=(True, 2))}, b"0" * 8), "none negative"),
        (raw({"x": entry(shape=(2.0,))}, b"0" * 8), "none negative"),
        (raw({"x": entry(shape=(1,) * 40)}, b"0" * 8), "at most 32"),
        (raw({"x": entry(offsets=(0, 9))}, b"0" * 8), "outside"),
        (raw({"x": entry(offsets=(8, 0))}, b"0" * 8), "outside"),
        (raw({"x": entry(offsets=(0, 8, 9))}, b"0" * 8), "[start, stop]"),
        (raw({"x": entry(offsets=(-8, 0))}, b"0" * 8), "[start, stop]"),
        (raw({"x": entry(shape=(3,))}, b"0" * 8), "needs 12 bytes"),
        (raw({"x": entry(shape=(1 << 62, 4))}, b"0" * 8), "needs"),
        (raw({"x": entry(shape=(0, 1 << 62), offsets=(0, 0))}), "needs"),
        (raw({"x": entry(), "y": entry()}, b"0" * 8), "overlaps"),
        (raw({"x": entry(), "y": entry(offsets=(4, 12))}, b"0" * 12), "overlaps"),
        (raw({"x": entry(), "y": entry(offsets=(12, 20))}, b"0" * 20), "hole"),
        (raw({"x": entry()}, b"0" * 9), "belong to no tensor"),
    ],
)
def test_hostile_files_are_refused_by_name(tmp_path: Path, content: bytes, said: str) -> None:
    assert said in refused(tmp_path, content)


def test_not_a_file(tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match="regular file"):
        SafetensorsFile(tmp_path)
    with pytest.raises(FileFormatError, match="cannot be read"):
        SafetensorsFile(tmp_path / "missing.safetensors")


def whole() -> bytes:
    header = {"x": entry(), "y": entry("BF16", (2, 2), (8, 16)), "__metadata__": {"a": "b"}}
    return raw(header, bytes(range(16)))


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_fuzz_mutated_files_never_crash(tmp_path_factory, data: st.DataObject) -> None:
    content = bytearray(whole())
    for _ in range(data.draw(st.integers(1, 4))):
        kind = data.draw(st.sampled_from(["flip", "cut", "insert"]))
        at = data.draw(st.integers(0, max(len(content) - 1, 0)))
        if kind == "flip" and content:
            content[at] = data.draw(st.integers(0, 255))
        elif kind == "cut":
            del content[at : at + data.draw(st.integers(1, 30))]
        else:
            content[at:at] = data.draw(st.binary(max_size=8))
    path = tmp_path_factory.getbasetemp() / "fuzz.safetensors"
    path.write_bytes(bytes(content))
    try:
        file = SafetensorsFile(path)
    except FileFormatError:
        return
    for name in file:
        assert file[name].shape == file.tensors[name].shape


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda x: st.lists(x, max_size=4) | st.dictionaries(st.text(max_size=5), x, max_size=4),
    max_leaves=8,
)
ENTRY = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(["F32", "BF16", "I8", "BOOL", "U64"]) | JSON,
        "shape": st.lists(st.integers(0, 1 << 70), max_size=4) | JSON,
        "data_offsets": st.lists(st.integers(0, 40), min_size=2, max_size=2) | JSON,
    }
)


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(st.text(max_size=6), ENTRY | JSON, max_size=4), st.binary(max_size=40))
def test_fuzz_arbitrary_headers_never_crash(tmp_path_factory, header: dict, tail: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzz2.safetensors"
    path.write_bytes(raw(header, tail))
    try:
        file = SafetensorsFile(path)
    except FileFormatError as e:
        assert str(path) in str(e)
        return
    for name in file:
        assert file[name].nbytes == file.tensors[name].stop - file.tensors[name].start


# -- folders --------------------------------------------------------------------------------------


def sharded(folder: Path, weight_map: dict) -> Path:
    save_file(folder / "m-1.safetensors", {"a": SAMPLE["a"]})
    save_file(folder / "m-2.safetensors", {"b": SAMPLE["b"]})
    (folder / INDEX).write_text(json.dumps({"weight_map": weight_map}))
    return folder


def test_sharded_checkpoint(tmp_path: Path) -> None:
    c = open_checkpoint(sharded(tmp_path, {"a": "m-1.safetensors", "b": "m-2.safetensors"}))
    assert set(c) == {"a", "b"}
    assert c.nbytes == SAMPLE["a"].nbytes + SAMPLE["b"].nbytes
    np.testing.assert_array_equal(c["a"], SAMPLE["a"])
    assert c.info("b").shape == (3,)


@pytest.mark.parametrize(
    ("weight_map", "said"),
    [
        ({"a": "gone.safetensors"}, "shard gone.safetensors is missing"),
        ({"z": "m-1.safetensors"}, "tensor 'z' is missing"),
        ({"a": "../m-1.safetensors"}, "plain name"),
        ({"a": "/etc/passwd"}, "plain name"),
        ({"a": "sub\\m-1.safetensors"}, "plain name"),
        ({"a": "m-1.safetensors\0"}, "plain name"),
        ({"a": 3}, "plain name"),
        ({}, "weight_map"),
        ([], "weight_map"),
    ],
)
def test_hostile_indexes(tmp_path: Path, weight_map: dict, said: str) -> None:
    with pytest.raises(FileFormatError) as e:
        open_checkpoint(sharded(tmp_path, weight_map))
    assert said in str(e.value)


def test_folder_without_weights_names_the_pickle(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"x")
    with pytest.raises(FileFormatError, match=r"pytorch_model\.bin is a pickle"):
        open_checkpoint(tmp_path)


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    save_file(path, {"a": SAMPLE["a"]})
    before = path.read_bytes()
    with pytest.raises(UsageError, match="does not hold"):
        save_file(path, {"a": np.zeros(3, np.complex64)})
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["x.safetensors"]


def test_release_leaves_the_values_and_gives_the_pages_back(tmp_path: Path) -> None:
    from weft.host.mapped import release

    rng = np.random.default_rng(0)
    want = {n: rng.random((s, 1000), np.float32) for n, s in (("a", 3), ("b", 5000), ("c", 1))}
    save_file(tmp_path / "model.safetensors", want)
    file = SafetensorsFile(tmp_path / "model.safetensors")
    b = file["b"]
    b.sum()
    before = _resident()
    release(b)
    if before is not None:
        assert before - _resident() > b.nbytes * 0.9
    release(want["a"])  # no file: nothing to do
    for name, value in want.items():
        np.testing.assert_array_equal(file[name], value)


def _resident() -> int | None:
    """Resident bytes of this process, where the system says so."""
    status = Path("/proc/self/status")
    if not status.exists():
        return None
    line = next(x for x in status.read_text().splitlines() if x.startswith("VmRSS"))
    return int(line.split()[1]) * 1024
