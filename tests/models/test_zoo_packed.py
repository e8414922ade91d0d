"""Packed checkpoints of traced types: read, and written by `weft quantize`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from weft.core.errors import ModelError, WeftError
from weft.core.packed import Packed, dequantized
from weft.importers.safetensors import open_checkpoint, save_file

pytest.importorskip("transformers")
import causal_zoo as kit
from packed_zoo import KINDS
from rows import few
from zoo_kit import here, loaded

from weft.importers.hf_config import read_config
from weft.models.zoo import ask
from weft.models.zoo.source import zoo_source
from weft.quantize.job import QuantizeOptions, quantize
from weft.quantize.kept import quantised


@pytest.fixture(autouse=True)
def traced_here(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(ask, "_asked", here)
    for user in ("models.run.loader", "quantize.source", "models.weights.writing"):
        monkeypatch.setattr(f"weft.{user}.DECODERS", {})
    yield


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Type -> folder of floats, each written once."""
    found: dict[str, Path] = {}

    def make(kind: str) -> Path:
        if kind not in found:
            found[kind] = tmp_path_factory.mktemp("floats") / kind
            latent = {"q_lora_rank": 32} if kind in ("deepseek_v3", "kimi_linear") else {}
            kit.written(kind, found[kind], **latent)
        return found[kind]

    return make


def is_linear(name: str, value: np.ndarray) -> bool:
    other = ("embed", "wte", "lm_head", "conv1d", "gate.weight", "mamba", "router")
    fits = value.ndim == 2 and value.shape[1] % 32 == 0 and name.endswith(".weight")
    return fits and not any(o in name for o in other)


def both(folder: Path, form: str, at: Path) -> tuple[Path, Path]:
    """Writes the linear layers of a folder packed, and as the floats that they stand for."""
    config = json.loads((folder / "config.json").read_text())
    given, write = KINDS[form]
    packed: dict[str, np.ndarray] = {}
    plain: dict[str, np.ndarray] = {}
    checkpoint = open_checkpoint(folder)
    for seed, name in enumerate(checkpoint):
        packed[name] = plain[name] = value = checkpoint[name]
        if is_linear(name, value):
            tensors, plain[name] = write(*value.shape, seed)
            del packed[name]
            stem = name.removesuffix("weight")
            packed |= {stem + rest: tensor for rest, tensor in tensors.items()}
    key = "quantization" if form.startswith("mlx") else "quantization_config"
    for to, tensors, more in (("packed", packed, {key: given}), ("plain", plain, {})):
        (at / to).mkdir(parents=True)
        (at / to / "config.json").write_text(json.dumps({**config, **more}))
        save_file(at / to / "model.safetensors", tensors, {"format": "pt"})
    return at / "packed", at / "plain"


CASES = [
    *[("stablelm", form) for form in KINDS],
    ("mixtral", "gptq"), ("mixtral", "awq"), ("mixtral", "pack 8"), ("mixtral", "gptq act-order"),
    ("minimax_m2", "fp8 blocks"), ("bamba", "pack 8"), ("kimi_linear", "pack"),
    ("deepseek_v3", "pack zeros"), ("jamba", "gptq"), ("qwen3_next", "nf4"), ("phi", "nf4 nested"),
]  # fmt: skip
DEFAULT = [
    ("stablelm", "nf4"), ("mixtral", "awq"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "form"), few(CASES, *DEFAULT))
def test_packed_checkpoints(made: Any, tmp_path: Path, kind: str, form: str) -> None:
    """Packed weights stand for the floats of their layout, and compute as those do."""
    folder, plain = both(made(kind), form, tmp_path)
    found, floats = (zoo_source(f, read_config(f)).weights for f in (folder, plain))
    held = {role: weight.value() for role, weight in found.items()}
    for role, weight in floats.items():
        wanted, got = weight.value(), held[role]
        assert isinstance(wanted, np.ndarray)
        if isinstance(got, Packed):
            np.testing.assert_array_equal(dequantized(*got).reshape(wanted.shape), wanted)
        else:
            np.testing.assert_array_equal(got, wanted.astype(got.dtype))
    assert ("order" in form) != any(isinstance(value, Packed) for value in held.values())
    ids = list(range(5, 25))
    wanted = loaded(plain, dtype="float32").logits(ids)
    got = loaded(folder, act_dtype="float32").logits(ids)
    np.testing.assert_allclose(got, wanted, atol=5e-3 * np.abs(wanted).max())
    exact = loaded(folder, dtype="float32").logits(ids)
    np.testing.assert_array_equal(exact, wanted)


def test_packed_weights_of_another_shape(made: Any, tmp_path: Path) -> None:
    folder, _ = both(made("stablelm"), "awq", tmp_path)
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"intermediate_size": 128}))
    with pytest.raises(ModelError, match=r"has shape \[96, 64\].*asks for \[128, 64\]"):
        loaded(folder)


# -- weft quantize --------------------------------------------------------------------------------

WRITTEN = ["stablelm", "mixtral", "opt", "bamba", "deepseek_v3", "phi", "kimi_linear", "bloom"]


@pytest.mark.parametrize("kind", few(WRITTEN, "mixtral"))
def test_weft_quantize_writes_what_quant_computes(made: Any, tmp_path: Path, kind: str) -> None:
    """The folder's weights are bit for bit those of quant=, the embeddings aside."""
    folder = made(kind)
    quantize(folder, tmp_path / "q", QuantizeOptions("int4", "int8", method="search"))
    now = quantised(folder, *both_of(zoo_source(folder, read_config(folder))), "int4")[1]
    written = zoo_source(tmp_path / "q", read_config(tmp_path / "q")).weights
    packed = 0
    for role, weight in now.items():
        wanted, got = weight.value(), written[role].value()
        assert isinstance(wanted, Packed) == isinstance(got, Packed) or role == "embed"
        if isinstance(wanted, Packed) and isinstance(got, Packed):
            np.testing.assert_array_equal(dequantized(*got), dequantized(*wanted))
            packed += role != "head"
    assert packed > 4
    ids = list(range(5, 25))
    got = loaded(tmp_path / "q", act_dtype="float32").logits(ids)
    wide = loaded(tmp_path / "q", dtype="float32").logits(ids)
    np.testing.assert_allclose(got, wide, atol=5e-3 * np.abs(wide).max())


def both_of(source: Any) -> tuple[Any, Any]:
    return source.config, source.weights


def test_what_weft_quantize_refuses_of_traced_types(made: Any, tmp_path: Path) -> None:
    folder, search = made("opt"), {"method": "search"}
    ids = np.zeros((1, 8), np.int32)
    for out, options, said in (
        ("q.gguf", QuantizeOptions(**search), "no GGUF of opt"),
        ("q", QuantizeOptions(), "does not calibrate opt, which is traced"),
        ("q", QuantizeOptions(text="some", **search), "does not calibrate opt, which is traced"),
        ("q", QuantizeOptions("nf4", **search), "does not hold nf4"),
    ):
        with pytest.raises(WeftError, match=said):
            quantize(folder, tmp_path / out, options, ids)
    with pytest.raises(ModelError, match=r"input_linear\.weight' holds all of a layer"):
        quantize(made("granitemoe"), tmp_path / "q", QuantizeOptions(**search))
    assert not any(tmp_path.iterdir())
