"""Gemma 3n, whose residual stream is several: as it is published, narrow and packed, seen from
inside, as vectors; and files that are damaged."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind
from gguf_zoo import packed, plain, write_gguf
from model_zoo import reference_greedy, reference_logits, write_model
from rows import few

import weft
from weft.core.errors import ModelError
from weft.importers.safetensors import open_checkpoint, save_file
from weft.models.arch.decoder import train_forward
from weft.models.arch.inputs import tables
from weft.models.arch.token_vectors import forward

IDS = np.random.default_rng(5).integers(0, 200, 60).tolist()
EVEN = {
    "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "head_dim": 16,
    "laurel_rank": 32, "hidden_size_per_layer_input": 32, "vocab_size_per_layer_input": 211,
}  # fmt: skip


@pytest.mark.parametrize(
    "options",
    few([{"quant": "int8"}, {"quant": "int4"}, {"dtype": "bfloat16"}]),
)
def test_narrow_weights(tmp_path: Path, options: dict[str, Any]) -> None:
    reference = write_model("gemma3n", tmp_path, changed=EVEN)
    model = weft.load(tmp_path, device="cpu", context=64, max_batch=2, **options)
    found, want = model.logits(IDS), reference_logits(reference, IDS)
    alike = np.corrcoef(found.ravel(), want.ravel())[0, 1]
    assert alike > (0.8 if options.get("quant") == "int4" else 0.98)
    runner = model.new_runner(2, 4)
    np.testing.assert_array_equal(runner.prefill(0, IDS[:20]), found[19])
    runner.prefill(1, IDS[:7])
    np.testing.assert_array_equal(runner.prefill(1, IDS[7:41], 7), found[40])
    both = runner.rows([IDS[20], IDS[41]], [0, 1], [20, 41])
    np.testing.assert_array_equal(both, found[[20, 41]])


@pytest.mark.slow
def test_within_a_model_that_sees_and_hears(tmp_path: Path) -> None:
    reference = write_model("gemma3n", tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    outer = {
        "model_type": "gemma3n",
        "text_config": config,
        "vision_config": {"model_type": "gemma3n_vision"},
        "audio_config": {"model_type": "gemma3n_audio"},
        "architectures": ["Gemma3nForConditionalGeneration"],
        "audio_soft_tokens_per_image": 188, "vision_soft_tokens_per_image": 256,
        "boi_token_id": 255999, "eoa_token_id": 262272,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(outer))
    at = "model.language_model."
    tensors = {k.replace("model.", at): v for k, v in open_checkpoint(tmp_path).items()}
    left = {f"{at}layers.5.self_attn.k_norm.weight": np.ones(12, np.float32)}
    left |= {f"{at}layers.5.self_attn.v_proj.weight": np.ones((24, 36), np.float32)}
    seen = {"model.vision_tower.timm_model.x.weight": np.ones(2, np.float32)}
    seen |= {"model.embed_audio.embedding.weight": np.ones((2, 2), np.float32)}
    save_file(tmp_path / "model.safetensors", tensors | seen | left)
    model = weft.load(tmp_path, device="cpu", context=128)
    np.testing.assert_allclose(
        model.logits(IDS), reference_logits(reference, IDS), atol=1e-4, rtol=1e-4
    )
    made = model.generate(IDS[:30], 16)
    assert list(made.ids) == reference_greedy(reference, IDS[:30], made.ids)


@pytest.mark.parametrize(("name", "wide"), [("gemma3n", 3 * 36), ("gemma4", 36)])
def test_the_streams_from_inside(tmp_path: Path, name: str, wide: int) -> None:
    """A layer's result is all streams; the output layer joins them, and reads no layer's inputs."""
    write_model(name, tmp_path)
    model = weft.load(tmp_path, device="cpu", context=64)
    last = f"layers.{model.config.layers - 1}.out"
    assert model.places()["embed"] == (36,) and model.places()[last] == (wide,)
    found = model.inspect(IDS[:9], "layers.*.out")
    np.testing.assert_array_equal(model.unembed(found[last]), model.logits(IDS[:9]))


def test_vectors_and_whole_texts(tmp_path: Path) -> None:
    import torch

    reference = write_model("gemma3n", tmp_path)
    model = weft.load(tmp_path, device="oracle", context=64)
    c = replace(model.config, run=None)
    weights = {**model.weights, **tables(c, 64)}
    ids = np.array([IDS[:20]], np.int32)
    with torch.no_grad():
        want = reference.model(torch.tensor(ids.tolist())).last_hidden_state.numpy()
    found = forward(c, weights, ids, np.array([20], np.int32))
    np.testing.assert_allclose(found, want, atol=1e-4, rtol=1e-4)
    found = train_forward(c, weights, ids)
    np.testing.assert_allclose(found, reference_logits(reference, IDS[:20]), atol=1e-4, rtol=1e-4)


def test_packed_stacks_in_gguf(tmp_path: Path) -> None:
    """The matrices of a stack stay packed, each by itself."""
    write_model("gemma3n", tmp_path, changed=EVEN)
    pack = packed(Kind.Q8_0)
    small = ("altup_correct", "altup_predict", "altup_router")

    def some(name: str, value: np.ndarray) -> Any:
        return (plain if any(part in name for part in small) else pack)(name, value)

    model = weft.load(write_gguf(tmp_path, tmp_path / "m.gguf", some), device="oracle")
    forms = dict(model.config.forms)
    assert {f"alt_{way}_{j}.w" for way in ("in", "out") for j in (0, 1)} < set(forms)
    want = weft.load(tmp_path, device="oracle").logits(IDS)
    assert np.corrcoef(model.logits(IDS).ravel(), want.ravel())[0, 1] > 0.98
    own = np.array(open_checkpoint(tmp_path)["model.altup_unembed_projections.1.weight"])
    codes = gguf.quants.quantize(own.astype(np.float32), Kind.Q8_0)
    kept = gguf.quants.dequantize(codes, Kind.Q8_0)
    from weft.core.packed import dequantized

    form = forms["alt_out_1.w"]
    parts = {p: np.asarray(model.weights[f"alt_out_1.w.{p}"]) for p in form.parts}
    np.testing.assert_array_equal(dequantized(form, parts), kept)


def test_a_stack_of_too_few(tmp_path: Path) -> None:
    write_model("gemma3n", tmp_path, changed=EVEN)

    def change(tensors: dict[str, np.ndarray]) -> None:
        tensors["altup_proj.weight"] = tensors["altup_proj.weight"][:1]

    path = write_gguf(tmp_path, tmp_path / "m.gguf", change=change)
    with pytest.raises(ModelError, match=r"altup_proj\.weight' has shape \[1, 64, 64\]; expected"):
        weft.load(path, device="oracle")


@pytest.mark.parametrize(("fields", "said"), [
    ({"altup_correct_scale": False}, "without a scale"),
    ({"activation_sparsity_pattern": [0.5]}, "activation_sparsity_pattern has 1 entries for 6"),
    ({"intermediate_size": [52, 44]}, "intermediate_size has 2 entries for 6 layers"),
    ({"altup_active_idx": 3}, "altup_active_idx is 3"),
])  # fmt: skip
def test_what_is_refused(tmp_path: Path, fields: dict[str, Any], said: str) -> None:
    write_model("gemma3n", tmp_path)
    config = json.loads((tmp_path / "config.json").read_text()) | fields
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match=said):
        weft.load(tmp_path, device="oracle")
