"""Metadata of GGUF files that change the rope, or that nothing reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf_zoo import write_gguf
from model_zoo import VOCAB, write_model

from weft.core import notices
from weft.core.errors import ModelError
from weft.models import load

IDS = np.random.default_rng(0).integers(0, VOCAB, 40)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("said") / "hf"
    write_model("llama2", folder)
    return folder


def scaled(llama: Path, folder: Path, rope: dict[str, Any]) -> Any:
    """The logits of the same weights with another rope in config.json."""
    folder.mkdir()
    for file in llama.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    config = json.loads((folder / "config.json").read_text())
    config["rope_parameters"] = {**config["rope_parameters"], **rope}
    (folder / "config.json").write_text(json.dumps(config))
    return load(folder, device="oracle").logits(IDS)


LINEAR = [
    {"factor": 4.0},  # llama.cpp takes linear where no type is given
    {"type": "linear", "factor": 4.0},
    {"factor": 4.0, "scale_linear": 2.0},
    {"scale_linear": 4.0},
    {"type": "linear", "scale_linear": 4.0},
]
PLAIN: list[dict[str, Any]] = [
    {"type": "none", "factor": 4.0},
    {"type": "none"},
    {"type": "linear"},
    {"factor": 1.0},
    {"factor": 0.0},
    {"scale_linear": 0.0},
    {"type": "none", "scale_linear": 4.0},
]


def keys_of(rope: dict[str, Any]) -> dict[str, Any]:
    return {
        "llama.rope." + ("" if name == "scale_linear" else "scaling.") + name: value
        for name, value in rope.items()
    }


@pytest.mark.parametrize("rope", LINEAR)
def test_a_factor_is_linear_unless_a_type_says_otherwise(
    rope: dict[str, Any], llama: Path, tmp_path: Path
) -> None:
    file = write_gguf(llama, tmp_path / "m.gguf", keys=keys_of(rope))
    want = scaled(llama, tmp_path / "hf", {"rope_type": "linear", "factor": 4.0})
    np.testing.assert_array_equal(load(file, device="oracle").logits(IDS), want)
    assert (want != load(llama, device="oracle").logits(IDS)).any()


@pytest.mark.parametrize("rope", PLAIN)
def test_what_scales_nothing(rope: dict[str, Any], llama: Path, tmp_path: Path) -> None:
    file = write_gguf(llama, tmp_path / "m.gguf", keys=keys_of(rope))
    want = load(llama, device="oracle").logits(IDS)
    np.testing.assert_array_equal(load(file, device="oracle").logits(IDS), want)


@pytest.mark.parametrize("names", [
    ("rope_factors_long.weight",), ("rope_factors_short.weight",),
    ("rope_factors_long.weight", "rope_factors_short.weight"),
])  # fmt: skip
def test_factors_that_nothing_uses_are_refused(
    names: tuple[str, ...], llama: Path, tmp_path: Path
) -> None:
    def change(tensors: dict[str, np.ndarray]) -> None:
        tensors |= {name: np.full(4, 2.0, np.float32) for name in names}

    file = write_gguf(llama, tmp_path / "m.gguf", change=change)
    with pytest.raises(ModelError, match=r"'rope_factors_\w+\.weight' is not part"):
        load(file, device="oracle")


def test_a_long_rope_needs_both_lists(tmp_path: Path) -> None:
    write_model("phi3", tmp_path / "hf")

    def change(tensors: dict[str, np.ndarray]) -> None:
        tensors.pop("rope_factors_short.weight", None)
        tensors["rope_factors_long.weight"] = np.full(4, 2.0, np.float32)

    file = write_gguf(tmp_path / "hf", tmp_path / "m.gguf", change=change)
    with pytest.raises(ModelError, match=r"one of rope_factors_\w+\.weight, .* is missing"):
        load(file, device="oracle")


def test_metadata_that_nothing_reads_are_named_once(
    llama: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    notices.say.cache_clear()
    keys = {"llama.attention.new_trick": 3, "llama.rope.twist": 0.5, "general.license": "mit"}
    file = write_gguf(llama, tmp_path / "m.gguf", keys=keys)
    for _ in range(2):
        load(file, device="oracle")
    said = "weft does not know attention.new_trick, rope.twist, which changes nothing here"
    assert capsys.readouterr().err.count(said) == 1
