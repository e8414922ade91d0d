"""Model folders that are damaged, hostile or strange: a named error in one or two lines, from
`weft.load` and from the command line."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from robust_kit import BERT, change_config, fails, tiny
from rows import few

import weft
from weft.core.errors import FileFormatError, ModelError, WeftError
from weft.importers.safetensors import INDEX, SINGLE, SafetensorsFile, save_file

Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny(tmp_path_factory.mktemp("good"))


@pytest.fixture
def folder(good: Path, tmp_path: Path) -> Path:
    """A fresh copy of a good model, to be spoilt."""
    return Path(shutil.copytree(good, tmp_path / "model"))


def refused(folder: Path, *words: str, error: type[WeftError] = WeftError) -> str:
    """`weft.load` raises a weft error of one or two lines that holds `words`."""
    with pytest.raises(error) as e:
        weft.load(folder, device="cpu")
    message = str(e.value)
    assert len(message.splitlines()) <= 2 and len(message) < 900
    for word in words:
        assert word in message, message
    return message


def header_of(path: Path) -> tuple[dict[str, Any], bytes]:
    raw = path.read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    return json.loads(raw[8 : 8 + length]), raw[8 + length :]


def write_raw(path: Path, header: object, data: bytes, length: int | None = None) -> None:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + data)


# -- weights --------------------------------------------------------------------------------------


def test_weights_cut_anywhere(folder: Path) -> None:
    path = folder / SINGLE
    raw = path.read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    places = {0, 1, 7, 8, 9, 8 + length // 2, 7 + length, 8 + length, 9 + length, len(raw) - 1}
    for cut in sorted(places | set(range(10, len(raw), len(raw) // 60))):
        path.write_bytes(raw[:cut])
        refused(folder, SINGLE, error=FileFormatError)


@pytest.mark.parametrize("length", [0, 1, 2**31, 2**63, 2**64 - 1, 100_000_001])
def test_a_header_length_that_lies(folder: Path, length: int) -> None:
    header, data = header_of(folder / SINGLE)
    write_raw(folder / SINGLE, header, data, length)
    refused(folder, SINGLE, "header", error=FileFormatError)


def _swap(header: dict[str, Any], field: str, value: Any) -> dict[str, Any]:
    name = next(n for n in header if n != "__metadata__")
    return {**header, name: {**header[name], field: value}}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("data_offsets", [4, 1028]),
        ("data_offsets", [0, 1 << 40]),
        ("data_offsets", [-8, 8]),
        ("data_offsets", [8, 0]),
        ("data_offsets", [0.0, 8.0]),
        ("data_offsets", [1 << 62, 1 << 63]),
        ("data_offsets", "all"),
        ("dtype", "F16"),
        ("dtype", "F64"),
        ("dtype", "Q4_K"),
        ("dtype", None),
        ("dtype", ["F32"]),
        ("shape", [1]),
        ("shape", [-1, -16]),
        ("shape", [1 << 33, 1 << 33]),
        ("shape", [True]),
        ("shape", "x"),
        ("shape", [1] * 100),
        ("shape", {}),
    ],
)
def test_entries_that_lie(folder: Path, field: str, value: Any) -> None:
    header, data = header_of(folder / SINGLE)
    write_raw(folder / SINGLE, _swap(header, field, value), data)
    refused(folder, SINGLE, "tensor", error=FileFormatError)


def test_names_given_twice(folder: Path) -> None:
    header, data = header_of(folder / SINGLE)
    text = json.dumps(header)
    name = next(n for n in header if n != "__metadata__")
    twice = text[:-1] + f', "{name}": {json.dumps(header[name])}}}'
    write_raw(folder / SINGLE, twice.encode(), data)
    refused(folder, "twice", error=FileFormatError)


def _shards(folder: Path, names: dict[str, str] | None = None) -> dict[str, str]:
    """Splits the weights over two files; the index's weight_map, with `names` changed."""
    tensors = {k: np.array(v) for k, v in SafetensorsFile(folder / SINGLE).items()}
    half = len(tensors) // 2
    homes = {n: f"part-{int(i >= half)}.safetensors" for i, n in enumerate(tensors)}
    for shard in set(homes.values()):
        save_file(folder / shard, {n: t for n, t in tensors.items() if homes[n] == shard})
    (folder / SINGLE).unlink()
    homes |= names or {}
    (folder / INDEX).write_text(json.dumps({"weight_map": homes}))
    return homes


def test_a_missing_shard_is_named(folder: Path) -> None:
    _shards(folder)
    weft.load(folder, device="cpu")
    (folder / "part-1.safetensors").unlink()
    refused(folder, "part-1.safetensors", "missing")


@pytest.mark.parametrize(
    "name",
    ["../part-0.safetensors", "/etc/passwd", "a/b.safetensors", "..\\x.safetensors", "", ".",
     "C:x.safetensors", "x\0.safetensors", "\ud800.safetensors", "part-0.bin",
     7, None, ["part-0.safetensors"],
     "x" * 5000 + ".safetensors"],
)  # fmt: skip
def test_shard_names_that_lead_elsewhere(folder: Path, name: Any) -> None:
    _shards(folder, {"model.norm.weight": name})
    refused(folder)


@pytest.mark.parametrize("index", ["[]", "{}", '{"weight_map": []}', '{"weight_map": {}}', "x"])
def test_an_index_that_is_none(folder: Path, index: str) -> None:
    (folder / SINGLE).unlink()
    (folder / INDEX).write_text(index)
    refused(folder, error=FileFormatError)


@pytest.mark.parametrize(
    "bad,dtype",
    few(itertools.product([np.nan, np.inf, -np.inf], [np.float32, np.float16, ml_dtypes.bfloat16]),
        (np.nan, np.float32), (np.inf, ml_dtypes.bfloat16), (-np.inf, np.float16)),
)  # fmt: skip
def test_weights_that_are_not_numbers_are_named(folder: Path, bad: float, dtype: Any) -> None:
    tensors = {k: np.array(v) for k, v in SafetensorsFile(folder / SINGLE).items()}
    tensors = {k: v.astype(dtype) for k, v in tensors.items()}
    tensors["model.layers.0.mlp.up_proj.weight"][3, 5] = bad
    save_file(folder / SINGLE, tensors)
    model = weft.load(folder, device="cpu")
    for play in (
        lambda: model.generate([1, 2], max_new_tokens=2),
        lambda: model.generate([1, 2], max_new_tokens=2, temperature=1.0),
        lambda: model.logits([1, 2, 3]),
    ):
        with pytest.raises(ModelError, match=r"layers\.0\.mlp\.up_proj\.weight.*\[3, 5\]"):
            play()


def test_an_encoder_with_nan_is_reported(tmp_path: Path) -> None:
    folder = tiny(tmp_path / "bert", BERT)
    tensors = {k: np.array(v) for k, v in SafetensorsFile(folder / SINGLE).items()}
    tensors["embeddings.LayerNorm.weight"][2] = np.nan
    save_file(folder / SINGLE, tensors)
    with pytest.raises(ModelError, match=r"embeddings\.LayerNorm\.weight"):
        weft.load(folder, device="cpu").embed("x")


# -- config.json ----------------------------------------------------------------------------------

_ABSURD = [0, -1, 2**40, 10**400, 1e300, 3.5, "16", True, [], {}, [16], "x" * 10**6]


@pytest.mark.parametrize("value", _ABSURD, ids=lambda v: str(v)[:12])
@pytest.mark.parametrize(
    "name",
    ["vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
     "num_key_value_heads", "max_position_embeddings", "head_dim"],
)  # fmt: skip
def test_absurd_sizes(folder: Path, name: str, value: Any) -> None:
    change_config(folder, **{name: value})
    refused(folder, name)


@pytest.mark.parametrize(
    ("name", "text"),
    [("rms_norm_eps", "NaN"), ("rms_norm_eps", "-1"), ("rope_theta", "Infinity"),
     ("rope_theta", '"10000"'), ("hidden_act", '"sin"'), ("hidden_act", "3"),
     ("tie_word_embeddings", "1"), ("rope_scaling", '{"rope_type": "yarn", "factor": "x"}'),
     ("rope_scaling", "[]"), ("model_type", '"mamba"'), ("model_type", "7"),
     ("model_type", "null"), ("quantization_config", '{"bits": 4}'), ("eos_token_id", '"</s>"'),
     ("eos_token_id", "-4"), ("eos_token_id", "[[1]]")],
)  # fmt: skip
def test_fields_that_make_no_sense(folder: Path, name: str, text: str) -> None:
    config = json.loads((folder / "config.json").read_text())
    config.pop(name, None)
    (folder / "config.json").write_text(json.dumps(config)[:-1] + f', "{name}": {text}}}')
    refused(folder)


@pytest.mark.parametrize(
    ("name", "value"), [("hidden_size", 32), ("vocab_size", 1 << 22), ("num_hidden_layers", 1024)]
)
def test_sizes_that_the_weights_do_not_have(folder: Path, name: str, value: int) -> None:
    change_config(folder, **{name: value})
    refused(folder, "tensor")


@pytest.mark.parametrize(
    "text",
    [b"", b"{", b"\xff\xfe{}", b"[" * 200_000, b'{"a":' * 100_000, b"7" * 10_000, b"[]", b"null",
     b'{"model_type": "llama", "model_type": "gpt2"}', b"\0" * 100, b'{"a": "\\ud800"}'],
    ids=lambda t: repr(t[:8]),
)  # fmt: skip
@pytest.mark.parametrize("name", ["config.json", "generation_config.json"])
def test_json_that_is_none(folder: Path, name: str, text: bytes) -> None:
    (folder / name).write_bytes(text)
    if name == "config.json" or b"ud800" not in text:
        refused(folder, name)


def test_a_hundred_megabytes_of_config(folder: Path) -> None:
    (folder / "config.json").write_bytes(b'{"a": "' + b"x" * (100 << 20) + b'"}')
    refused(folder, "config.json", "bytes")


# -- what stands where files should be ------------------------------------------------------------


def _directory(path: Path) -> None:
    path.mkdir()


def _loop(path: Path) -> None:
    path.symlink_to(path)


def _fifo(path: Path) -> None:
    os.mkfifo(path)


def _unreadable(path: Path) -> None:
    path.write_text("{}")
    path.chmod(0)
    if os.access(path, os.R_OK):
        pytest.skip("this user reads every file")


@pytest.mark.parametrize("make", [_directory, _loop, _fifo, _unreadable])
@pytest.mark.parametrize("name", ["config.json", SINGLE])
def test_files_that_are_none(folder: Path, name: str, make: Callable[[Path], None]) -> None:
    (folder / name).unlink()
    make(folder / name)
    refused(folder, name)


@pytest.mark.parametrize("make", [_directory, _fifo, _unreadable])
def test_a_tokenizer_that_is_no_file(folder: Path, make: Callable[[Path], None]) -> None:
    (folder / "tokenizer.json").unlink()
    make(folder / "tokenizer.json")
    with pytest.raises(WeftError, match=r"tokenizer\.json"):
        weft.load(folder, device="cpu").generate("x")


@pytest.mark.parametrize("name", ["nothing", "x" * 5000, "a\0b", "x/" * 3000, ""])
def test_folders_that_are_none(tmp_path: Path, name: str) -> None:
    refused(Path(f"{tmp_path}/{name}"))


def test_a_folder_that_is_a_symlink_loop(tmp_path: Path) -> None:
    _loop(tmp_path / "model")
    refused(tmp_path / "model")


@pytest.mark.parametrize(
    "path", ["../x", "/etc", "a/../../b", "C:\\x", "x\0y", "\ud800", "x" * 5000, 7, None]
)
def test_pooling_modules_that_lead_elsewhere(tmp_path: Path, path: Any) -> None:
    folder = tiny(tmp_path / "bert", BERT)
    module = {"type": "sentence_transformers.models.Pooling", "path": path}
    (folder / "modules.json").write_text(json.dumps([module]))
    refused(folder)


@pytest.mark.parametrize(
    "text", ["{}", "[1]", '[{"type": 3}]', '[{"type": "os.system"}]', "[" * 100_000, "[{}]"],
    ids=lambda t: t[:20],
)  # fmt: skip
def test_modules_that_are_none(tmp_path: Path, text: str) -> None:
    folder = tiny(tmp_path / "bert", BERT)
    (folder / "modules.json").write_text(text)
    refused(folder, "modules.json")


# -- tokenizer ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [b"", b"garbage", b"{}", b'{"model": {"type": "BPE"}}', b"[" * 100_000, b"\xff" * 1000,
     b'{"version":"1.0","model":{"type":"BPE","vocab":{"a":-1},"merges":[]}}',
     b'{"version":"1.0","model":{"type":"BPE","vocab":{"a":0},"merges":["a b"]}}',
     b'{"version":"1.0","pre_tokenizer":{"type":"Split","pattern":{"Regex":"("},'
     b'"behavior":"Isolated","invert":false},"model":{"type":"BPE","vocab":{},"merges":[]}}'],
    ids=lambda t: repr(t[:30]),
)  # fmt: skip
def test_a_tokenizer_of_garbage(folder: Path, text: bytes, capfd: Capture) -> None:
    (folder / "tokenizer.json").write_bytes(text)
    fails(capfd, "run", str(folder), "hello", "--device", "cpu")


def test_a_tokenizer_of_another_model(folder: Path, capfd: Capture) -> None:
    config = json.loads((folder / "config.json").read_text()) | {"vocab_size": 100}
    shutil.copy(folder / "tokenizer.json", folder.parent / "tokenizer.json")
    from weft.models import random_folder

    small = random_folder(folder.parent / "small", config)
    shutil.copy(folder.parent / "tokenizer.json", small)
    error = fails(capfd, "run", str(small), "hello", "--device", "cpu")
    assert "256 tokens" in error and "100" in error


def test_a_huge_tokenizer(folder: Path) -> None:
    with (folder / "tokenizer.json").open("wb") as f:
        f.truncate(300 << 20)  # sparse
    with pytest.raises(FileFormatError, match="bytes"):
        weft.load(folder, device="cpu").generate("x")


def test_the_command_line_shows_what_load_says(folder: Path, capfd: Capture) -> None:
    (folder / SINGLE).write_bytes(b"1234")
    for command in ("run", "explain", "embed", "chat"):
        words = ["hi"] if command in ("run", "embed") else []
        error = fails(capfd, command, str(folder), *words, "--device", "cpu")
        assert "8-byte length" in error
