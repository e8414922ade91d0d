"""Models from GGUF files, written as llama.cpp's converter writes them, against the same models
from safetensors."""

from __future__ import annotations

import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind
from gguf_zoo import converted, packed, plain, tensor_name, write_gguf
from model_zoo import DECODERS, VOCAB, write_model
from rows import by_turns, few
from stepping import scores

from weft.core.dtypes import float16
from weft.core.errors import ModelError
from weft.hub.box import box_folder
from weft.importers.safetensors import open_checkpoint, save_file
from weft.models import load
from weft.models.arch.inputs import with_tables
from weft.models.arch.matrices import owner as owner_of
from weft.models.run.compiled_runner import CompiledRunner
from weft.models.run.eager_runner import EagerRunner
from weft.models.run.placed import Placed

IDS = np.random.default_rng(0).integers(0, VOCAB, 40)
# A llama that every block type fits: rows of 256
WIDE = {
    "model_type": "llama", "vocab_size": VOCAB, "hidden_size": 256, "intermediate_size": 512,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64,
    "max_position_embeddings": 64, "rms_norm_eps": 1e-6, "dtype": "float16",
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
}  # fmt: skip


@pytest.mark.parametrize("name,dtype", by_turns(DECODERS, ["float32", "float16", "bfloat16"]))
def test_logits_are_those_of_the_safetensors(name: str, dtype: str, tmp_path: Path) -> None:
    """Bit for bit; Llama 3.1's scaled frequencies, which the file holds worked out, but for the
    rounding of working them out."""
    write_model(name, tmp_path / "hf", dtype)
    theirs = load(tmp_path / "hf", device="oracle")

    def pack(name: str, value: np.ndarray) -> tuple[np.ndarray, Kind | None]:
        if dtype != "bfloat16" or value.ndim == 1:
            return plain(name, value)
        return value.view(np.uint8), Kind.BF16

    ours = load(write_gguf(tmp_path / "hf", tmp_path / "m.gguf", pack), device="oracle")
    got, want = ours.logits(IDS), theirs.logits(IDS)
    if name == "llama3":
        np.testing.assert_allclose(got, want, atol=5e-6)
        assert ours.config.ropes[0].divisors[0] == 1.0 and ours.config.ropes[0].divisors[-1] == 8.0
    else:
        np.testing.assert_array_equal(got, want)
    changed = {"transposed": False, "windows": (), "ropes": (), "scale": 1.0}
    assert replace(ours.config, **changed) == replace(theirs.config, **changed)
    for i in range(ours.config.layers):
        assert ours.config.window(i) == theirs.config.window(i)


@pytest.mark.filterwarnings("error")
def test_a_nan_that_signals(tmp_path: Path) -> None:
    """In one of Gemma's norms, from which 1 is taken."""
    write_model("gemma2", tmp_path / "hf")

    def damaged(tensors: dict[str, np.ndarray]) -> None:
        tensors["output_norm.weight"].view(np.uint32)[0] = 0x7FA00000

    path = write_gguf(tmp_path / "hf", tmp_path / "m.gguf", change=damaged)
    assert np.isnan(load(path, device="oracle").weights["norm.w"][0])


def test_the_reference_tells_layers_apart(tmp_path: Path) -> None:
    """That a wrong order of the rows of queries would be seen above."""
    write_model("llama2", tmp_path / "hf")

    def unturned(tensors: dict[str, np.ndarray]) -> None:
        for name, value in open_checkpoint(tmp_path / "hf").items():
            if "q_proj" in name:
                tensors[tensor_name("llama", name)] = value

    wrong = load(write_gguf(tmp_path / "hf", tmp_path / "m.gguf", change=unturned), device="oracle")
    right = load(tmp_path / "hf", device="oracle")
    assert np.abs(wrong.logits(IDS) - right.logits(IDS)).max() > 0.01


def wide(folder: Path) -> Path:
    from weft.models.weights.random_weights import random_folder

    return random_folder(folder, WIDE, seed=3, scale=0.1)


def blocks(kind: Kind, value: np.ndarray) -> np.ndarray:
    """Blocks of any kind in the shape of `value`: random bits, with scales of a sensible size."""
    if kind in (Kind.Q4_0, Kind.Q8_0):
        return gguf.quants.quantize(value.astype(np.float32), kind)
    per, size = gguf.GGML_QUANT_SIZES[kind]
    rng = np.random.default_rng(value.size)
    out = rng.integers(0, 256, (*value.shape[:-1], value.shape[-1] // per, size), np.uint8)
    scales = {Kind.Q4_K: (0, 2), Kind.Q6_K: (size - 2,), Kind.Q5_0: (0,)}[kind]
    for at in scales:
        scale = rng.uniform(1e-4, 4e-4, out.shape[:-1]).astype(np.float16)
        out[..., at : at + 2] = scale[..., None].view(np.uint8)
    return out.reshape(*value.shape[:-1], -1)


@pytest.mark.parametrize(
    "kind", few([Kind.Q8_0, Kind.Q4_0, Kind.Q5_0, Kind.Q4_K, Kind.Q6_K], Kind.Q5_0, Kind.Q6_K)
)
def test_packed_weights_are_those_that_the_gguf_package_unpacks(kind: Kind, tmp_path: Path) -> None:
    """Kept packed, and in what else is asked for: bit for bit a folder of unpacked weights."""
    folder = wide(tmp_path / "hf")
    file = write_gguf(
        folder, tmp_path / "m.gguf",
        lambda name, v: plain(name, v) if v.ndim == 1 else (blocks(kind, v), kind),
    )  # fmt: skip
    tensors = {}
    for name, value in open_checkpoint(folder).items():
        ours = tensor_name("llama", name)
        changed = converted("llama", ours, value, WIDE)
        if value.ndim > 1:
            changed = gguf.quants.dequantize(blocks(kind, np.ascontiguousarray(changed)), kind)
            if ".attn_q." in ours or ".attn_k." in ours:
                heads = 4 if ".attn_q." in ours else 2
                changed = changed.reshape(heads, 32, 2, -1).swapaxes(1, 2).reshape(value.shape)
        tensors[name] = np.ascontiguousarray(changed)
    save_file(folder / "model.safetensors", {k: v.astype("f4") for k, v in tensors.items()})
    for dtype in ("float32", "bfloat16"):
        ours, theirs = (load(p, device="oracle", dtype=dtype) for p in (file, folder))
        assert ours.weights["embed"].dtype == theirs.weights["embed"].dtype
        np.testing.assert_array_equal(ours.logits(IDS), theirs.logits(IDS))
    for device in ("oracle", "cpu") if kind in (Kind.Q4_K, Kind.Q6_K) else ("oracle",):
        kept, theirs = (
            load(file, device=device, act_dtype="float32"),
            load(folder, device=device, dtype="float32"),
        )
        bits = 8 * gguf.GGML_QUANT_SIZES[kind][1] / gguf.GGML_QUANT_SIZES[kind][0]
        assert -0.01 <= float(kept.precision.split()[1]) - bits <= 1 / 8  # scales of 6 bits get 8
        np.testing.assert_array_equal(scored(kept), scored(theirs))


def scored(model: Any) -> np.ndarray:
    """Logits with a cache in float16."""
    config = replace(model.config, kv_dtype=float16)
    weights = with_tables(config, model.weights, 64)
    if model.device is None:
        return scores(EagerRunner(config, Placed(weights, None), 64, 1, 1), IDS)
    return scores(CompiledRunner(config, Placed(weights, model.device), 64, 1, 1), IDS)


def test_a_compiled_model_writes_the_same(tmp_path: Path) -> None:
    """On the CPU device: packed, unpacked on the way in, and through the oracle."""
    file = write_gguf(wide(tmp_path / "hf"), tmp_path / "m.gguf", packed(Kind.Q8_0))
    want = load(file, device="oracle").generate(IDS[:9], max_new_tokens=12)
    got = load(file, device="cpu").generate(IDS[:9], max_new_tokens=12)
    assert got.ids == want.ids


@pytest.mark.parametrize("kind", few([Kind.Q8_0, Kind.Q4_K], Kind.Q4_K))
def test_a_device_has_the_only_copy_of_packed_weights(kind: Kind, tmp_path: Path) -> None:
    """All but what is read in the file's order (embeddings) are let go, are there again for whoever
    asks, and are as they were."""
    file = write_gguf(
        wide(tmp_path / "hf"), tmp_path / "m.gguf",
        lambda name, v: plain(name, v) if v.ndim == 1 else (blocks(kind, v), kind),
    )  # fmt: skip
    fresh, model = load(file, device="oracle"), load(file, device="cpu")
    owners = {name: weakref.ref(root(value)) for name, value in model.weights.items()}
    said, size = model.precision, sum(v.nbytes for v in model.weights.outlines.values())
    ids = model.generate(IDS[:9], max_new_tokens=4).ids
    kept = {name for name, owner in owners.items() if owner() is not None}
    parts = {n for n in model.weights if owner_of(model.config.forms, n) != n}
    in_place = parts & set(model.runner().weight_buffers)
    assert kept & parts == in_place and {n.split(".")[0] for n in in_place} == {"embed"}
    assert kept | parts == set(model.weights)
    assert model.precision == said
    assert size == sum(v.nbytes for v in fresh.weights.outlines.values())
    assert list(model.weights) == list(fresh.weights)
    for name, value in model.weights.items():
        np.testing.assert_array_equal(value, fresh.weights[name])
    both = model.generate([IDS[:9], IDS[:9]], max_new_tokens=4)
    assert [found.ids for found in both] == [ids, ids]


def root(value: np.ndarray) -> np.ndarray:
    """The array whose memory this one is a view of."""
    while isinstance(value.base, np.ndarray):
        value = value.base
    return value


def test_the_model_in_the_box(tmp_path: Path) -> None:
    """Trained weights with their own tokenizer, in float16 as they are: the same text."""
    from gguf_vocab import byte_level
    from transformers import PreTrainedTokenizerFast

    box = box_folder()
    hf = PreTrainedTokenizerFast(tokenizer_file=str(box / "tokenizer.json"))
    write = byte_level(hf, eos_token_id=0)
    file = write_gguf(box, tmp_path / "box.gguf", tokenizer=write)
    prompt = "def fibonacci(n):\n    "
    got, want = (load(p, device="cpu").generate(prompt, max_new_tokens=24) for p in (file, box))
    assert got.text == want.text and got.ids == want.ids


def test_what_needs_no_change_is_a_view_of_the_file(tmp_path: Path) -> None:
    write_model("qwen3", tmp_path / "hf")
    weights = load(write_gguf(tmp_path / "hf", tmp_path / "m.gguf"), device="oracle").weights
    assert not any(value.flags.owndata or value.flags.writeable for value in weights.values())


def test_norms_of_gemma_lose_nothing(tmp_path: Path) -> None:
    """1 is taken off again, so that narrow weights are rounded as those of the folder are."""
    write_model("gemma2", tmp_path / "hf")
    file = write_gguf(tmp_path / "hf", tmp_path / "m.gguf")
    for dtype in ("float32", "bfloat16"):
        ours, theirs = (load(p, device="oracle", dtype=dtype) for p in (file, tmp_path / "hf"))
        got, want = ours.weights["0.attn_norm.w"], theirs.weights["0.attn_norm.w"]
        np.testing.assert_allclose(got.astype(float), want.astype(float), rtol=2**-8, atol=2**-23)
    np.testing.assert_array_equal(ours.logits(IDS), theirs.logits(IDS))


def test_a_file_in_parts(tmp_path: Path) -> None:
    write_model("llama2", tmp_path / "hf")
    whole = load(write_gguf(tmp_path / "hf", tmp_path / "m.gguf"), device="oracle")
    (tmp_path / "parts").mkdir()
    write_gguf(tmp_path / "hf", tmp_path / "parts" / "m.gguf", parts=8)
    names = sorted((tmp_path / "parts").iterdir())
    assert len(names) > 2
    np.testing.assert_array_equal(load(names[0], device="oracle").logits(IDS), whole.logits(IDS))


def test_scales_that_are_no_numbers(tmp_path: Path) -> None:
    """NaN is damage; what overflows float16 is not, and says what helps."""
    folder = wide(tmp_path / "hf")

    def spoiled(scale: float) -> Path:
        def pack(name: str, value: np.ndarray) -> tuple[np.ndarray, Kind | None]:
            data, kind = packed(Kind.Q8_0)(name, value)
            if name == "blk.1.ffn_down.weight":
                data[7, 34 * 3 : 34 * 3 + 2] = np.array([scale], np.float16).view(np.uint8)
                data[7, 34 * 3 + 2] = 127
            return data, kind

        return write_gguf(folder, tmp_path / f"{scale}.gguf", pack)

    with pytest.raises(ModelError, match=r"'blk\.1\.ffn_down\.weight': block 115 has a scale that"):
        load(spoiled(float("nan")), device="oracle")
    large = spoiled(60000.0)
    with pytest.raises(ModelError, match=r"'blk\.1\.ffn_down\.weight' overflows float16; use bf"):
        load(large, device="oracle", dtype="float16")
    for dtype in (None, "float32"):
        assert np.isfinite(load(large, device="oracle", dtype=dtype).logits(IDS)).all()
