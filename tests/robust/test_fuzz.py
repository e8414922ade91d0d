"""Readers of foreign bytes, fed thousands of damaged files: only weft's errors may come out."""

from __future__ import annotations

import io
import json
import os
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from robust_kit import BERT, LLAMA, tiny

import weft
from weft.core.dtypes import as_dtype
from weft.core.errors import DTypeError, FileFormatError, WeftError
from weft.host.cache import DiskCache
from weft.importers.hf_config import Fields, parse_json
from weft.importers.safetensors import SINGLE, SafetensorsFile
from weft.models.arch.encoders import ENCODERS
from weft.models.arch.families import DECODERS
from weft.program import serial, tensors

Rng = np.random.Generator
_WORDS = [b"{", b"}", b"[", b"]", b'"', b",", b":", b"null", b"true", b"-1", b"1e999", b"NaN",
          b"9" * 20, b"\\ud800", b"\xff", b"\0", b"F64", b"const", b"0.5"]  # fmt: skip


def damage(data: bytes, rng: Rng) -> bytes:
    """`data` with one to four small wounds."""
    out = bytearray(data)
    for _ in range(rng.integers(1, 5)):
        at = int(rng.integers(0, len(out) + 1))
        kind = rng.integers(0, 6)
        if kind == 0 and at < len(out):
            out[at] ^= 1 << int(rng.integers(0, 8))
        elif kind == 1:
            out[at : at + int(rng.integers(1, 30))] = b""
        elif kind == 2:
            out[at:at] = rng.bytes(int(rng.integers(1, 9)))
        elif kind == 3:
            word = _WORDS[rng.integers(0, len(_WORDS))]
            out[at : at + int(rng.integers(0, len(word) + 1))] = word
        elif kind == 4:
            other, n = int(rng.integers(0, len(out) + 1)), int(rng.integers(1, 40))
            out[at:at] = out[other : other + n]
        elif rng.integers(0, 4) == 0:
            out = out[:at]
    return bytes(out)


def only_weft_errors(read: Callable[[bytes], Any], data: bytes, cases: int, seed: int) -> int:
    """Plays `read` on damaged `data`; how many were refused. One line each."""
    rng = np.random.Generator(np.random.Philox(seed))
    refused = 0
    for _ in range(cases):
        bad = damage(data, rng)
        try:
            read(bad)
        except WeftError as e:
            refused += 1
            assert len(str(e).splitlines()) <= 2, e
    return refused


# -- safetensors ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny(tmp_path_factory.mktemp("model"))


def test_damaged_safetensors(folder: Path, tmp_path: Path) -> None:
    raw = (folder / SINGLE).read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    path = tmp_path / "x.safetensors"

    def read(data: bytes) -> None:
        path.write_bytes(data)
        for value in SafetensorsFile(path).values():
            value.sum()

    with np.errstate(all="ignore"):
        assert only_weft_errors(read, raw, 200, 1) > 80

        def header(data: bytes) -> None:  # the length is right, the header is not
            read(struct.pack("<Q", len(data)) + data + raw[8 + length :])

        assert only_weft_errors(header, raw[8 : 8 + length], 400, 2) > 260


_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["F32", "BOOL", "dtype", "shape", "data_offsets", 2**63, [0, 8], [2]]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=12,
)
_ENTRY = st.fixed_dictionaries({"dtype": _JSON, "shape": _JSON, "data_offsets": _JSON})


@settings(max_examples=25, deadline=None)
@given(header=st.dictionaries(st.text(max_size=12), _JSON | _ENTRY), data=st.binary(max_size=64))
def test_headers_of_any_json(
    tmp_path_factory: pytest.TempPathFactory, header: Any, data: bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.safetensors"
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    try:
        list(SafetensorsFile(path).values())
    except FileFormatError:
        return
    assert not data or header


# -- config.json ----------------------------------------------------------------------------------

_FAMILIES: dict[str, Any] = {**DECODERS, **ENCODERS}
_NAMES = sorted(
    {*LLAMA, *BERT, "head_dim", "rope_scaling", "rope_parameters", "rope_theta", "layer_types",
     "sliding_window", "sliding_window_pattern", "hidden_act", "rms_norm_eps", "n_embd", "n_head",
     "n_layer", "n_inner", "n_positions", "dim", "n_heads", "n_layers", "hidden_dim",
     "query_pre_attn_scalar", "attn_logit_softcapping", "type_vocab_size", "pad_token_id",
     "max_window_layers", "use_sliding_window", "attention_bias", "rope_type", "factor"}
)  # fmt: skip
_ROPE = st.dictionaries(
    st.sampled_from(["rope_type", "type", "factor", "low_freq_factor", "high_freq_factor",
                     "original_max_position_embeddings", "rope_theta", "full_attention"]),
    _JSON | st.sampled_from(["linear", "llama3", "default", 2.0, 8]),
)  # fmt: skip
_VALUE = _JSON | _ROPE | st.integers(-2, 70) | st.sampled_from([2**31, 2**63, 10**30, "gelu"])


@settings(max_examples=60, deadline=None)
@given(
    kind=st.sampled_from(sorted(_FAMILIES)),
    base=st.sampled_from([LLAMA, BERT, {}]),
    changed=st.dictionaries(st.sampled_from(_NAMES), _VALUE, max_size=8),
)
def test_configs_of_any_json(kind: str, base: dict[str, Any], changed: dict[str, Any]) -> None:
    text = json.dumps({**base, **changed}).encode()
    try:
        made = _FAMILIES[kind](Fields(parse_json(text, "config"), "config"))
    except WeftError as e:
        assert len(str(e).splitlines()) <= 2
        return
    assert made.hidden >= 1 and made.layers >= 1 and made.head_dim >= 1


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json"])
def test_damaged_json_beside_good_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr("weft.models.zoo.ask._version", lambda name: "")  # starts no transformers
    folder = tiny(tmp_path)
    data = (folder / name).read_bytes()

    def read(bad: bytes) -> None:
        (folder / name).write_bytes(bad)
        model = weft.load(folder, device="cpu")
        model.encode("hi")

    assert only_weft_errors(read, data, 100, 3) > 16


# -- Programs and what is cached ------------------------------------------------------------------


@pytest.fixture(scope="module")
def program(folder: Path) -> Any:
    return weft.load(folder, device="cpu").programs()["decode"]


def test_damaged_program_files(program: Any) -> None:
    data = serial.dumps(program)
    for trusted in (False, True):
        read = lambda bad, trusted=trusted: serial.loads(bad, trusted)  # noqa: E731
        assert only_weft_errors(read, data, 100, 4) > 60


@pytest.mark.parametrize("name", serial.MEMBERS)
def test_damaged_members_in_a_sound_zip(program: Any, name: str) -> None:
    with zipfile.ZipFile(io.BytesIO(serial.dumps(program))) as archive:
        members = {n: archive.read(n) for n in serial.MEMBERS}

    def read(bad: bytes) -> None:
        out = io.BytesIO()
        with zipfile.ZipFile(out, "w") as archive:
            for n, member in members.items():
                archive.writestr(n, bad if n == name else member)
        serial.loads(out.getvalue())
        serial.loads(out.getvalue(), trusted=True)

    assert only_weft_errors(read, members[name], 60, 5) > 20


def test_damaged_constants() -> None:
    arrays = {"a": np.arange(6, dtype=np.float32), "b": np.zeros((2, 0), np.int8)}
    read = lambda bad: [v.sum() for v in tensors.loads(bad).values()]  # noqa: E731
    with np.errstate(all="ignore"):
        assert only_weft_errors(read, tensors.dumps(arrays), 400, 6) > 80


@pytest.mark.filterwarnings("ignore:Data type alias:DeprecationWarning")
@settings(max_examples=100, deadline=None)
@given(st.text(max_size=6) | st.text("fiu<>=,()[]0123456789 OSVMabc|", max_size=10) | _JSON)
def test_names_of_dtypes(value: Any) -> None:
    try:
        as_dtype(value)
    except DTypeError as e:
        assert len(str(e)) < 300


@pytest.mark.parametrize("nested", [b"[" * 100_000, b'{"a":' * 100_000, b"1" * 6000])
def test_deep_json_in_a_program(program: Any, nested: bytes) -> None:
    with zipfile.ZipFile(io.BytesIO(serial.dumps(program))) as archive:
        members = {n: archive.read(n) for n in serial.MEMBERS}
    for name in serial.MEMBERS:
        bad = struct.pack("<Q", len(nested)) + nested if name.endswith("tensors") else nested
        out = io.BytesIO()
        with zipfile.ZipFile(out, "w") as archive:
            for n, member in members.items():
                archive.writestr(n, bad if n == name else member)
        with pytest.raises(FileFormatError):
            serial.loads(out.getvalue())


def test_programs_that_are_none(program: Any, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "bytes").write_bytes(b"PK")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    os.mkfifo(tmp_path / "pipe")
    for name in ("nothing", "empty", "bytes", "loop", "pipe", "x" * 5000):
        with pytest.raises(FileFormatError):
            weft.Program.load(tmp_path / name)
    program.save(tmp_path / "empty")
    assert weft.Program.load(tmp_path / "empty").name == program.name
    (tmp_path / "empty" / "kernels.json").unlink()
    with pytest.raises(FileFormatError, match=r"kernels\.json"):
        weft.Program.load(tmp_path / "empty")


def test_damaged_cache_files_count_as_absent(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path)
    cache.put("key", bytes(range(256)) * 4)
    (path,) = (p for p in tmp_path.rglob("*") if p.is_file() and p.name != "key")
    raw = path.read_bytes()
    rng = np.random.Generator(np.random.Philox(7))
    for _ in range(500):
        bad = damage(raw, rng)
        path.write_bytes(bad)
        assert bad == raw or cache.get("key") is None


def test_a_model_survives_damage_to_everything_it_cached(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one process the code is loaded already; test_process.py does the same over processes."""
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path))
    want = weft.load(folder, device="cpu", context=20).generate([1, 2], max_new_tokens=6)
    files = [p for p in tmp_path.rglob("*") if p.is_file()]
    assert files
    rng = np.random.Generator(np.random.Philox(8))
    for path in files:
        path.write_bytes(damage(path.read_bytes(), rng))
    assert weft.load(folder, device="cpu", context=20).generate([1, 2], max_new_tokens=6) == want
