"""Layers that see a chunk of the text alone (Llama 4), over many pages: against transformers, and
the same bits however a text comes."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from model_zoo import reference_greedy, reference_logits, write_model
from rows import few

import weft
from weft.conform.models import CONFIGS
from weft.core.errors import ModelError
from weft.importers.safetensors import open_checkpoint, save_file
from weft.models import random_folder
from weft.models.arch.decoder import train_forward
from weft.models.arch.inputs import tables
from weft.models.run import loader

IDS = np.random.default_rng(5).integers(0, 200, 300).tolist()
CHUNKED = {"attention_chunk_size": 64, "max_position_embeddings": 512, "floor_scale": 50}


@pytest.mark.parametrize(
    ("size", "cache"),
    few(itertools.product([64, 128, 192], ["float32", "int8"]), (192, "float32")),
)
def test_a_text_over_chunks(tmp_path: Path, size: int, cache: str) -> None:
    reference = write_model("llama4", tmp_path, changed={**CHUNKED, "attention_chunk_size": size})
    model = weft.load(tmp_path, device="cpu", context=320, max_batch=2, cache=cache)
    assert model.config.chunked and max(model.config.windows) == size
    found, want = model.logits(IDS), reference_logits(reference, IDS)
    if cache == "float32":
        np.testing.assert_allclose(found, want, atol=1e-4, rtol=1e-4)
    else:  # a few tokens take another expert
        assert np.quantile(abs(found - want), 0.99) < 0.1
    runner = model.new_runner(2, 10)
    for n in (1, 63, 64, 65, 127, 128, 129, 200, 300):
        np.testing.assert_array_equal(runner.prefill(n % 2, IDS[:n]), found[n - 1])
        if cut := n * 2 // 3:
            runner.prefill(1 - n % 2, IDS[:cut])
            np.testing.assert_array_equal(runner.prefill(1 - n % 2, IDS[cut:n], cut), found[n - 1])
    runner.prefill(0, IDS[:120])
    runner.prefill(1, IDS[:190])
    for t in range(120, 135):  # both cross into another chunk
        both = runner.rows([IDS[t], IDS[t + 70]], [0, 1], [t, t + 70])
        np.testing.assert_array_equal(both, found[[t, t + 70]])
    if cache == "float32":
        for prompt, made in zip(
            (IDS[:120], IDS[7:62]), model.generate([IDS[:120], IDS[7:62]], max_new_tokens=16)
        ):
            assert list(made.ids) == reference_greedy(reference, prompt, made.ids)


@pytest.mark.parametrize(
    "options", few([{"quant": "int8"}, {"quant": "int4"}, {"dtype": "bfloat16"}])
)
def test_narrow_weights(tmp_path: Path, options: dict[str, Any]) -> None:
    wide = {"hidden_size": 64, "intermediate_size": 32, "intermediate_size_mlp": 96, "head_dim": 16}
    reference = write_model("llama4", tmp_path, changed={**CHUNKED, **wide})
    model = weft.load(tmp_path, device="cpu", context=128, max_batch=2, **options)
    found, want = model.logits(IDS[:90]), reference_logits(reference, IDS[:90])
    alike = np.corrcoef(found.ravel(), want.ravel())[0, 1]
    assert alike > (0.8 if options.get("quant") == "int4" else 0.99)
    runner = model.new_runner(2, 4)
    np.testing.assert_array_equal(runner.prefill(0, IDS[:64]), found[63])
    runner.prefill(1, IDS[:40])
    np.testing.assert_array_equal(runner.prefill(1, IDS[40:80], 40), found[79])
    both = runner.rows([IDS[64], IDS[80]], [0, 1], [64, 80])
    np.testing.assert_array_equal(both, found[[64, 80]])


@pytest.mark.parametrize(
    "device", few(["interp:cuda", "interp:webgpu", "oracle"], "interp:webgpu", "oracle")
)
def test_chunks_elsewhere(tmp_path: Path, device: str) -> None:
    reference = write_model("llama4", tmp_path, changed=CHUNKED)
    ids = IDS[:72]
    runner = weft.load(tmp_path, device=device, context=128).runner()
    want = reference_logits(reference, ids)
    np.testing.assert_allclose(runner.prefill(0, ids[:70]), want[69], atol=1e-4, rtol=1e-4)
    np.testing.assert_allclose(runner.rows([ids[70]], [0], [70])[0], want[70], atol=1e-4, rtol=1e-4)


def test_only_the_chunk_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bits of a cache of everything: long prompts, prefixes found again, batches, drafts."""
    sizes = {"max_position_embeddings": 2560, "attention_chunk_size": 128}
    path = random_folder(tmp_path / "m", {**CONFIGS["llama4"], **sizes}, scale=0.3)
    ids = np.random.default_rng(3).integers(0, 90, 2400).tolist()
    model = weft.load(path, device="cpu", context=2560)
    with monkeypatch.context() as patch:
        patch.setattr(loader, "kept_window", lambda c, context: 0)
        whole = weft.load(path, device="cpu", context=2560)
    assert model.config.kv_window == 128 and whole.config.kv_window == 0
    np.testing.assert_array_equal(model.logits(ids[:1500]), whole.logits(ids[:1500]))
    again = ids[:1800] + ids[:9]
    for draft in (False, True):
        assert model.generate(again, 80, draft=draft).ids == whole.generate(again, 80).ids
        model.engine().check()
    prompts = [ids[:1800], [*ids[:1300], 5], ids[:70]]
    got, want = (m.generate(prompts, 70) for m in (model, whole))
    assert [g.ids for g in got] == [w.ids for w in want]
    model.engine(3).check()


def test_what_attention_sees(tmp_path: Path) -> None:
    write_model("llama4", tmp_path, changed=CHUNKED)
    model = weft.load(tmp_path, device="cpu", context=192)
    seen = model.inspect(IDS[:150], "layers.0.attn.weights")["layers.0.attn.weights"]
    chunk = np.arange(150) // 64
    inside = np.tril(chunk[:, None] == chunk)
    weights = np.asarray(seen)
    assert (weights[:, ~inside] == 0).all()
    np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-5)


def test_whole_texts_and_documents(tmp_path: Path) -> None:
    """A dense model as it is trained: chunks count from where a document begins."""
    changed = {**CHUNKED, "moe_layers": [], "num_local_experts": 1}
    reference = write_model("llama4", tmp_path, changed=changed)
    model = weft.load(tmp_path, device="oracle", context=320)
    c = replace(model.config, run=None)
    want = reference_logits(reference, IDS[:150])
    weights = {**model.weights, **tables(c, 320)}
    found = train_forward(c, weights, np.array([IDS[:150]], np.int32))
    np.testing.assert_allclose(found, want, atol=1e-4, rtol=1e-4)
    joined = np.array([[~IDS[200], *IDS[201:230], ~IDS[0], *IDS[1:150]]], np.int32)
    found = train_forward(c, weights, joined, packed=True)
    np.testing.assert_allclose(found[30:], want, atol=1e-4, rtol=1e-4)


def test_a_chunk_is_whole_pages(tmp_path: Path) -> None:
    write_model("llama4", tmp_path, changed={**CHUNKED, "attention_chunk_size": 100})
    with pytest.raises(ModelError, match="attention_chunk_size is 100; expected a multiple of 64"):
        weft.load(tmp_path, device="oracle")


def test_within_a_model_that_sees(tmp_path: Path) -> None:
    """Llama 4 as it is published: names have a prefix, and the output layer has it too."""
    reference = write_model("llama4", tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    outer = {
        "model_type": "llama4",
        "text_config": config | {"for_llm_compressor": False, "no_rope_layers": []},
        "vision_config": {"model_type": "llama4_vision_model"},
        "architectures": ["Llama4ForConditionalGeneration"],
        "boi_token_index": 200080, "eoi_token_index": 200081, "image_token_index": 200092,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(outer))
    tensors = {f"language_model.{k}": v for k, v in open_checkpoint(tmp_path).items()}
    tensors["vision_model.layernorm_pre.bias"] = np.ones(2, np.float32)
    tensors["multi_modal_projector.linear_1.weight"] = np.ones((2, 2), np.float32)
    save_file(tmp_path / "model.safetensors", tensors)
    found = weft.load(tmp_path, device="oracle").logits(IDS[:20])
    np.testing.assert_allclose(found, reference_logits(reference, IDS[:20]), atol=1e-4, rtol=1e-4)
