"""Folders with packed weights: what their makers' layouts say, and what damage gives."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from packed_zoo import BF16, KINDS, awq, checkpoint, mxfp4, write_folder

from weft.core.errors import ModelError
from weft.core.packed import Packed, dequantized
from weft.importers.hf_config import Fields
from weft.importers.packed.checkpoint import PackedCheckpoint, method_of
from weft.importers.safetensors import open_checkpoint, save_file
from weft.models import load
from weft.models.arch.families import DECODERS
from weft.models.weights.decoder_names import decoder_layout
from weft.models.weights.widening import packed_weights, rows_of

UNPACKED = {"gptq act-order", "pack order"}  # columns in another order
STRADDLE = {"nf4", "nf4 nested"}  # where K is not whole blocks


@pytest.mark.parametrize("kind", KINDS)
def test_weights_are_those_of_the_layout(kind: str, tmp_path: Path) -> None:
    """Kept packed: to the bit; widened: rounded once."""
    config, tensors, plain = layers(kind)
    folder = write_folder(tmp_path, config, tensors)
    raw = Fields(config, "config.json")
    found = PackedCheckpoint(open_checkpoint(folder), method_of(raw, folder))
    layout = decoder_layout(DECODERS["llama"](raw))
    kept = {r: w.value() for r, w in packed_weights(layout, found, None).items()}
    assert sorted(kept) == sorted(plain)
    for role, wanted in plain.items():
        value = kept[role]
        if wanted.dtype != np.float32:
            assert isinstance(value, np.ndarray) and value.tobytes() == wanted.tobytes()
        elif kind in UNPACKED or (kind in STRADDLE and wanted.shape[1] % 64):
            assert isinstance(value, np.ndarray)
            np.testing.assert_array_equal(value, wanted.astype(np.float16))
            name = f"model.{layout.weights[role].name}"
            np.testing.assert_array_equal(rows_of(found.read(name))(slice(None)), wanted)
        else:
            assert isinstance(value, Packed)
            value.form.check(value.parts, *wanted.shape)
            np.testing.assert_array_equal(dequantized(*value), wanted)
    model = load(folder, device="oracle")
    assert [r for r, _ in model.config.forms] == [r for r in kept if isinstance(kept[r], Packed)]
    assert np.isfinite(model.logits(range(5, 15))).all()
    exact = load(folder, device="oracle", dtype="float32").weights
    assert all(
        np.array_equal(exact[role], value.astype(np.float32)) for role, value in plain.items()
    )


@pytest.mark.parametrize("kind", ["awq", "fp8 blocks", "mlx 6"])
def test_a_device_computes_what_the_oracle_does(kind: str, tmp_path: Path) -> None:
    config, tensors, _ = layers(kind)
    folder = write_folder(tmp_path, config, tensors)
    got, want = (load(folder, device=d, act_dtype="float32") for d in ("cpu", "oracle"))
    assert got.config.forms
    ids = list(range(3, 20))
    np.testing.assert_allclose(got.logits(ids), want.logits(ids), rtol=1e-3, atol=2e-3)


AT = "model.layers.0.self_attn.q_proj."  # the layer that is damaged: [64, 64]
Change = Callable[[dict[str, np.ndarray]], Any]
GIVEN = "quantization_config"


def cut(name: str, axis: int = 1) -> Change:
    def change(t: dict[str, np.ndarray]) -> None:
        t[AT + name] = np.delete(t[AT + name], -1, axis)

    return change


def put(name: str, at: Any, value: Any) -> Change:
    return lambda t: t[AT + name].__setitem__(at, value)


def drop(name: str) -> Change:
    return lambda t: t.pop(AT + name)


def state(**fields: Any) -> Change:
    name = AT + "weight.quant_state.bitsandbytes__nf4"

    def change(t: dict[str, np.ndarray]) -> None:
        text = json.dumps({**json.loads(t[name].tobytes()), **fields})
        t[name] = np.frombuffer(text.encode(), np.uint8)

    return change


HOSTILE: list[tuple[str, Change, str]] = [
    ("gptq", cut("qweight", 0), r"'g_idx' has shape \[64\]; expected \[56\]"),
    ("gptq", cut("qweight"), r"'scales' has shape \[4, 64\]; expected \[\*, 63\]"),
    ("gptq", drop("qzeros"), "'qzeros' is missing; there are qweight, scales, g_idx"),
    ("gptq", cut("qzeros", 0), r"'qzeros' has shape \[3, 8\]; expected \[4, \*\]"),
    ("gptq", cut("qzeros"), "224 bits of zeros do not make 64 equal parts"),
    ("gptq", put("g_idx", 3, 99), "g_idx holds 0 to 99; there are 4 groups"),
    ("gptq", put("g_idx", 3, -1), "g_idx holds -1 to 3"),
    ("gptq", put("g_idx", 3, 2), "g_idx gives group 0 15 columns; expected 16 for each"),
    ("gptq", put("scales", (0, 0), np.nan), "'scales' holds NaN or infinity"),
    ("awq", cut("qweight"), r"'scales' has shape \[4, 64\]; expected \[\*, 56\]"),
    ("awq", cut("qweight", 0), "63 rows do not make 4 equal parts"),
    ("awq", drop("qzeros"), "'qzeros' is missing"),
    ("pack", cut("weight_packed"), "7 words for 64 columns"),
    ("pack", cut("weight_packed", 0), r"shape \[63, 8\]; expected \[64, \*\]"),
    ("pack", put("weight_shape", 1, 1 << 60), "says 64 x 1152921504606846976"),
    ("pack", put("weight_shape", 1, -64), "says 64 x -64"),
    (
        "pack",
        put("weight_shape", 1, 128),
        "the tensors are 2 bits, int, group_size 32; the config says 4 bits, int, g",
    ),
    ("pack", drop("weight_shape"), "'weight_shape' is missing"),
    ("pack", put("weight_scale", (0, 0), np.inf), "'weight_scale' holds NaN or infinity"),
    ("pack zeros", cut("weight_zero_point", 0), r"shape \[7, 4\]; expected \[8, 4\]"),
    ("int", cut("weight_scale", 0), r"'weight_scale' has shape \[63, 1\]; expected \[64, \*\]"),
    ("int", drop("weight"), "'weight' is missing"),
    ("float", put("weight", (2, 2), np.nan), "a weight is NaN"),
    (
        "float",
        lambda t: t.__setitem__(AT + "weight_zero_point", np.ones((64, 1), np.int8)),
        "floats with a zero point are not read",
    ),
    ("fp8 blocks", cut("weight_scale_inv", 0), r"shape \[2, 2\]; expected \[3, 2\]"),
    ("fp8 blocks", put("weight_scale_inv", (0, 0), np.nan), "'weight_scale_inv' holds NaN"),
    ("mxfp4", put("weight_scale", (0, 0), 255), "255, which is NaN"),
    ("nvfp4", put("weight_global_scale", 0, 0), "must be one number, not 0"),
    ("nvfp4", put("weight_global_scale", 0, 1e-38), "holds NaN, or overflows"),
    ("mlx", cut("weight"), "7 words and 2 scales a row do not make groups of 32"),
    ("mlx", cut("biases"), r"'biases' has shape \[64, 1\]; expected \[64, 2\]"),
    ("mlx", drop("biases"), "MLX's mode 'affine'"),
    ("nf4", cut("weight", 0), r"'weight' has shape \[2047, 1\]; expected \[2048, 1\]"),
    ("nf4", state(shape=[64, 1 << 31]), r"expected \[68719476736, 1\]"),
    ("nf4", state(shape=[64]), r"shape is \[64\]; expected \[N, K\]"),
    ("nf4", state(blocksize=48), "not whole blocks of 48"),
    ("nf4", drop("weight.quant_map"), "'weight.quant_map' is missing"),
    ("nf4 nested", state(nested_offset="x"), "nested_offset is 'x'; expected a number"),
    ("nf4", put("weight.quant_state.bitsandbytes__nf4", 0, 0), "not valid JSON"),
    ("int8", put("SCB", 0, np.inf), "'SCB' holds NaN or infinity"),
]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("which", range(len(HOSTILE)))
def test_damaged_layers(which: int, tmp_path: Path) -> None:
    kind, change, message = HOSTILE[which]
    config, tensors, _ = layers(kind)
    tensors = {name: np.array(value) for name, value in tensors.items()}
    change(tensors)
    with pytest.raises(ModelError, match=message) as e:
        load(write_folder(tmp_path, config, tensors), device="oracle")
    assert "q_proj" in str(e.value) and len(str(e.value)) < 400 + len(str(tmp_path))


@cache
def layers(kind: str) -> Any:
    return checkpoint(kind)


LIES: list[tuple[str, dict[str, Any], str]] = [
    ("gptq", {"bits": 8}, "tensors are 4 bits in groups of 16; the config says bits 8"),
    ("gptq", {"group_size": 128}, "in groups of 16; the config says bits 4, group_size 128"),
    ("gptq", {"bits": None}, "bits is missing"),
    ("gptq", {"checkpoint_format": "gptq_p"}, "checkpoint_format 'gptq_p' is not supported; read"),
    ("gptq", {"quant_method": "awq"}, "g_idx.* is not part"),
    ("gptq", {"pack_dtype": "x" * 9999}, "pack_dtype 'x{39} is not supported"),
    ("awq", {"bits": 5}, "AWQ's version 'gemm' of 5 bits"),
    ("awq", {"version": "gemv"}, "AWQ's version 'gemv' of 4 bits is not supported"),
    ("awq", {"quant_method": "gptq"}, r"'scales' has shape \[4, 64\]; expected \[\*, 8\]"),
    ("pack", {"quant_method": "fp8"}, "weight_shape.* is not part"),
    ("pack", {"quant_method": "hqq"}, "'hqq' is not supported; read are gptq .* GGUF"),
    ("pack", {"quant_method": None}, "quant_method '' is not supported"),
    ("pack", {"format": "marlin-24"}, "format 'marlin-24' is not supported"),
    ("pack", {"config_groups": {"a": {"weights": {"num_bits": 8, "group_size": 16}}}}, "says 8 b"),
    ("pack", {"config_groups": {"a": {"weights": {"num_bits": 4, "group_size": 64}}}}, "size 64"),
    (
        "int",
        {"quant_method": "gptq", "bits": 4, "format": "gptq"},
        "says the weights are gptq, but no layer has",
    ),
    ("fp8 blocks", {"weight_block_size": [128]}, "expected rows and columns"),
    ("fp8 blocks", {"weight_block_size": [64, 64]}, r"expected \[1, 1\]"),
    ("mlx", {"group_size": 64}, "2 bits in groups of 64; the config says bits 4, group_size 64"),
    ("mlx", {"bits": 8}, "the config says bits 8"),
    ("mlx", {"mode": "nvfp4"}, "MLX's mode 'nvfp4'"),
]


@pytest.mark.parametrize("which", range(len(LIES)))
def test_a_config_that_lies(which: int, tmp_path: Path) -> None:
    kind, change, message = LIES[which]
    config, tensors, _ = layers(kind)
    name = "quantization" if "quantization" in config else GIVEN
    config = {**config, name: {**config[name], **change}}
    with pytest.raises(ModelError, match=message):
        load(write_folder(tmp_path, config, tensors), device="oracle")


@pytest.mark.filterwarnings("error")
def test_scales_of_scales_that_overflow(tmp_path: Path) -> None:
    """Of rows that are not whole blocks, which no form holds."""
    config, tensors, _ = layers("nf4 nested")
    name = "model.layers.0.mlp.down_proj.weight.nested_absmax"
    tensors = {**tensors, name: np.full_like(tensors[name], 3e38)}
    with pytest.raises(ModelError, match="overflow float16"):
        load(write_folder(tmp_path, config, tensors), device="oracle")


def test_a_row_of_an_odd_number_of_weights(tmp_path: Path) -> None:
    tensors, _ = awq(8, 63, 0, group=9)
    layer = {f"l.{name}": value for name, value in tensors.items()}
    save_file(tmp_path / "m.safetensors", layer)
    config = Fields({GIVEN: {"quant_method": "awq", "group_size": 9}}, "")
    checkpoint = open_checkpoint(tmp_path / "m.safetensors")
    found = PackedCheckpoint(checkpoint, method_of(config, tmp_path))
    with pytest.raises(ModelError, match="layer 'l': a packed row of 63 weights is not whole runs"):
        found.read("l.weight")


def test_shapes_are_those_of_the_model(tmp_path: Path) -> None:
    config, tensors, _ = layers("gptq")
    config = {**config, "intermediate_size": 64}
    with pytest.raises(ModelError, match=r"mlp.*are \[96, 64\]; config.json asks for \[64, 64\]"):
        load(write_folder(tmp_path, config, tensors), device="oracle")


def test_packed_and_plain_at_once(tmp_path: Path) -> None:
    config, tensors, _ = layers("gptq")
    tensors = {**tensors, AT + "weight": np.zeros((64, 64), BF16)}
    with pytest.raises(ModelError, match=r"q_proj.weight' is there packed and plain"):
        load(write_folder(tmp_path, config, tensors), device="oracle")


def test_the_config_of_old_gptq_folders(tmp_path: Path) -> None:
    config, tensors, plain = layers("gptq")
    folder = write_folder(tmp_path, {k: v for k, v in config.items() if k != GIVEN}, tensors)
    (folder / "quantize_config.json").write_text('{"bits": 4, "group_size": 16}')
    model = load(folder, device="oracle", dtype="float32")
    np.testing.assert_array_equal(model.weights["0.q.w"], plain["0.q.w"])


def test_gpt_oss_experts(tmp_path: Path) -> None:
    """[E, N, K / 32, 16]: the rows of the experts one after the other."""
    tensors, wanted = mxfp4(3 * 4, 64, 0)
    name = "model.layers.0.mlp.experts.down_proj"
    save_file(tmp_path / "m.safetensors", {
        f"{name}_blocks": tensors["weight_packed"].reshape(3, 4, 2, 16),
        f"{name}_scales": tensors["weight_scale"].reshape(3, 4, 2),
        f"{name}_bias": np.zeros((3, 4), BF16),
    })  # fmt: skip
    config = Fields({GIVEN: {"quant_method": "mxfp4"}}, "")
    found = PackedCheckpoint(
        open_checkpoint(tmp_path / "m.safetensors"), method_of(config, tmp_path)
    )
    assert sorted(found) == [name, f"{name}_bias"]
    packed = found.read(name).packed
    assert packed is not None
    np.testing.assert_array_equal(dequantized(*packed), wanted)


def test_too_large_for_float16(tmp_path: Path) -> None:
    config, tensors, _ = layers("int8")
    tensors = {**tensors, AT + "SCB": np.full(64, 1e6, np.float32)}
    folder = write_folder(tmp_path, config, tensors)
    with pytest.raises(ModelError, match=r"q_proj.weight' overflow float16; use bfloat16"):
        load(folder, device="oracle", dtype="float16")
    assert np.isfinite(load(folder, device="oracle").logits(range(5, 15))).all()
    assert np.isfinite(
        load(folder, device="oracle", dtype="bfloat16").weights["0.q.w"].astype(float)
    ).all()
